#!/usr/bin/env bash
# Makes an AppImage of a Debian package for x86-64: its files as a squashfs, behind the runtime that mounts them and starts the
# program. No libraries go with them: the program is linked to those of C and opens what else it needs when it runs.
# Needs dpkg-deb, mksquashfs (squashfs-tools) and python3. Usage: bash packaging/linux/appimage.sh DEB FOLDER
set -euo pipefail

# AppImageKit's runtime, which is in this crate as it was built there; it reads gzip and xz.
RUNTIME=https://static.crates.io/crates/appimage/appimage-0.4.0.crate
RUNTIME_SHA256=567a4da6b94a2ac20a27620933c80fc14cf475b5fe7d7b137d20eb237d6b1920
id=org.thermocline.Thermocline

fail() { echo "packaging/linux/appimage.sh: $*" >&2; exit 1; }

[[ $# -eq 2 ]] || fail "expected a Debian package and the folder that the AppImage goes to, got $# arguments"
for tool in dpkg-deb mksquashfs python3; do
  command -v "$tool" >/dev/null || fail "$tool is needed"
done
deb=$(realpath -e "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$(dpkg-deb --field "$deb" Version)
machine=$(dpkg-deb --field "$deb" Architecture)
[[ $machine == amd64 ]] || fail "$deb: expected a package for amd64, got one for $machine"

# The runtime, kept once it has been fetched.
crate=$PWD/target/tools/${RUNTIME##*/}
pinned() { sha256sum --check --status 2>/dev/null <<<"$RUNTIME_SHA256  $1"; }
if ! pinned "$crate"; then
  mkdir -p "${crate%/*}"
  python3 - "$RUNTIME" "$work/crate" <<'PYTHON' || fail "the runtime cannot be fetched"
import sys, urllib.request

address, file = sys.argv[1:]
try:
    with urllib.request.urlopen(address, timeout=60) as answer, open(file, "wb") as out:
        out.write(answer.read())
except OSError as error:
    sys.exit(f"{address}: {error}")
PYTHON
  pinned "$work/crate" || fail "$RUNTIME: expected sha256 $RUNTIME_SHA256, got $(sha256sum <"$work/crate" | cut -d' ' -f1)"
  mv "$work/crate" "$crate"
fi

# The files. Those at the top are what file managers and AppImage tools look at; copies take no room in a squashfs.
umask 022
dir=$work/AppDir
mkdir "$dir"
dpkg-deb --extract "$deb" "$dir"
entry=$dir/usr/share/applications/$id.desktop
icon=$dir/usr/share/icons/hicolor/256x256/apps/thermocline.png
for file in "$entry" "$icon" "$dir/usr/bin/thermocline"; do
  [[ -s $file ]] || fail "$deb: has no ${file#"$dir"}"
done
sed -i "/^\[Desktop Entry\]$/a X-AppImage-Name=Thermocline\nX-AppImage-Version=$version\nX-AppImage-Arch=x86_64" "$entry"
cp "$entry" "$dir"
cp "$icon" "$dir"
cp "$icon" "$dir/.DirIcon"
ln -s usr/bin/thermocline "$dir/AppRun"

# Fixed times and owners, so that the same package becomes the same AppImage on every machine.
env -u SOURCE_DATE_EPOCH mksquashfs "$dir" "$work/squashfs" -root-owned -noappend -no-xattrs -comp gzip -mkfs-time 0 -all-time 0 \
  -quiet -no-progress
image=thermocline_${version}_x86_64.AppImage
tar -xzOf "$crate" "$(basename "$crate" .crate)/assets/runtime-x86_64" >"$work/$image"
cat "$work/squashfs" >>"$work/$image"
chmod 755 "$work/$image"
mv "$work/$image" "$out/$image"
echo "$out/$image"
