"""What a screen reader would find in a window: asks the accessibility bus, as the system's own tools do.

    seen.py list                         every control: role, name, place
    seen.py wait SECONDS NAME            until something of that name is there; prints its place as "x y width height"
    seen.py gone SECONDS NAME            until nothing of that name is there
    seen.py place NAME                   as wait, at once; fails if there is none
    seen.py close WINDOW                 asks an X11 window to close, as its title bar would

NAME is the beginning of an accessible name, or of a text, and may be preceded by a role: "slider:VRAM"; with "$" behind it, all of
the name. Places are in pixels of the window.
"""

import ctypes
import sys
import time


def application():
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi

    desktop = Atspi.get_desktop(0)
    for at in range(desktop.get_child_count()):
        child = desktop.get_child_at_index(at)
        if child and child.get_name().lower().startswith("thermocline"):
            return child
    return None


def walk(node):
    """Every control below `node`, with what it is called."""
    from gi.repository import Atspi, GLib

    pending = [node]
    while pending:
        node = pending.pop()
        if node is None:
            continue
        try:
            # Names may have changed since they were asked for last.
            node.clear_cache()
            name = node.get_name() or ""
            if not name and "Text" in node.get_interfaces():
                name = Atspi.Text.get_text(node, 0, Atspi.Text.get_character_count(node))
            yield node, node.get_role_name(), name
            pending.extend(node.get_child_at_index(at) for at in reversed(range(node.get_child_count())))
        except GLib.Error:
            continue  # It went away meanwhile.


def place(node):
    from gi.repository import Atspi

    if "Component" not in node.get_interfaces():
        return 0, 0, 0, 0
    box = Atspi.Component.get_extents(node, Atspi.CoordType.WINDOW)
    return box.x, box.y, box.width, box.height


def find(wanted):
    role, _, name = wanted.rpartition(":")
    matches = str.__eq__ if name.endswith("$") else str.startswith
    name = name.removesuffix("$")
    root = application()
    for node, kind, title in walk(root) if root else ():
        if matches(title, name) and role in ("", kind):
            box = place(node)
            if box[2] > 0 and box[3] > 0:
                return box
    return None


def close(window):
    """Sends WM_DELETE_WINDOW, which needs no window manager."""

    class ClientMessage(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int),
            ("serial", ctypes.c_ulong),
            ("send_event", ctypes.c_int),
            ("display", ctypes.c_void_p),
            ("window", ctypes.c_ulong),
            ("message_type", ctypes.c_ulong),
            ("format", ctypes.c_int),
            ("data", ctypes.c_long * 5),
            ("padding", ctypes.c_long * 24),
        ]

    x11 = ctypes.CDLL("libX11.so.6")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    x11.XInternAtom.restype = ctypes.c_ulong
    x11.XSendEvent.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    display = x11.XOpenDisplay(None)
    protocols, delete = (x11.XInternAtom(display, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW"))
    message = ClientMessage(type=33, window=window, message_type=protocols, format=32)
    message.data[0] = delete
    x11.XSendEvent(display, window, 0, 0, ctypes.byref(message))
    x11.XCloseDisplay(display)


def main():
    what, *rest = sys.argv[1:] or ["help"]
    if what == "list":
        for node, role, name in walk(application()):
            print(f"{role:16} {' '.join(map(str, place(node))):22} {name!r}")
    elif what == "wait":
        until = time.monotonic() + float(rest[0])
        while (box := find(rest[1])) is None:
            if time.monotonic() > until:
                sys.exit(f"seen.py: nothing called {rest[1]!r} within {rest[0]} s")
            time.sleep(0.2)
        print(*box)
    elif what == "gone":
        until = time.monotonic() + float(rest[0])
        while find(rest[1]) is not None:
            if time.monotonic() > until:
                sys.exit(f"seen.py: still something called {rest[1]!r} after {rest[0]} s")
            time.sleep(0.2)
    elif what == "place":
        if (box := find(rest[0])) is None:
            sys.exit(f"seen.py: nothing is called {rest[0]!r}")
        print(*box)
    elif what == "close":
        close(int(rest[0]))
    else:
        sys.exit(__doc__)


main()
