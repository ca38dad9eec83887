# For tests that open windows, to be sourced: a virtual screen that belongs to them. Needs the package xvfb.

# own_folder: makes the folder `work`, with `log` and the system's folder for running programs in it. At the script's end it kills
# the processes in `pids` and removes the folder.
own_folder() {
  work=$(mktemp -d) pids=()
  log=$work/log
  trap end_processes EXIT
  export XDG_RUNTIME_DIR=$work/run LIBGL_ALWAYS_SOFTWARE=1
  unset WAYLAND_DISPLAY XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME
  mkdir -m 700 "$XDG_RUNTIME_DIR"
}
end_processes() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}

# screen FOLDER WIDTHxHEIGHT: starts it and sets DISPLAY and `screen_pid`; files go to FOLDER. The calling script kills it.
# The server picks its number and tells when it can be connected to. Without -noreset it starts over whenever its last client
# has gone, and refuses connections meanwhile.
screen() {
  Xvfb -displayfd 3 -screen 0 "${2}x24" -nolisten tcp -noreset 3>"$1/display" 2>"$1/screen.log" & screen_pid=$!
  for _ in {1..100}; do [[ -s $1/display ]] && break; sleep 0.1; done
  [[ -s $1/display ]] || { echo "Xvfb did not start:" >&2; cat "$1/screen.log" >&2; return 1; }
  DISPLAY=:$(<"$1/display"); export DISPLAY
}

# screen_readers FOLDER: starts a session's bus and on it that of screen readers; sets `bus_pid` and `launcher_pid`. A program that
# starts before the second one is there would start one of its own, on which no screen reader is announced.
screen_readers() {
  local at launcher= owner=(dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner)
  for at in /usr/libexec /usr/lib/at-spi2-core /usr/lib; do [[ -x $at/at-spi-bus-launcher ]] && launcher=$at/at-spi-bus-launcher; done
  [[ $launcher ]] || { echo "at-spi-bus-launcher is missing" >&2; return 1; }
  dbus-daemon --session --nofork --print-address=3 3>"$1/bus" 2>/dev/null & bus_pid=$!
  for _ in {1..100}; do [[ -s $1/bus ]] && break; sleep 0.1; done
  DBUS_SESSION_BUS_ADDRESS=$(<"$1/bus"); export DBUS_SESSION_BUS_ADDRESS
  "$launcher" --launch-immediately --a11y=1 --screen-reader=1 >/dev/null 2>&1 & launcher_pid=$!
  for _ in {1..100}; do
    "${owner[@]}" string:org.a11y.Bus 2>/dev/null | grep -q 'boolean true' && return 0
    sleep 0.1
  done
  echo "the bus of screen readers did not start" >&2
  return 1
}

# What follows needs the functions `seen` and `fail`, `window` with its number and `size` with its WIDTHxHEIGHT.
#
# reach NAME: scrolls until it is in the window; sets `box` to its place.
reach() {
  local n found height=${size#*x}
  for n in {1..20}; do
    found=$(seen wait 60 "$1")
    read -ra box <<<"$found"
    if ((box[1] + box[3] > height)); then n=5; elif ((box[1] < 0)); then n=4; else return 0; fi
    xdotool mousemove --window "$window" "$((box[0] + box[2] / 2))" "$((height / 2))" click $n click $n
    sleep 0.3
  done
  fail "$1 cannot be scrolled into the window"
}
# click NAME: brings it into the window and clicks it.
click() { reach "$1"; xdotool mousemove --window "$window" "$((box[0] + box[2] / 2))" "$((box[1] + box[3] / 2))"; sleep 0.2; xdotool click 1; sleep 0.4; }
