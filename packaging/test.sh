#!/usr/bin/env bash
# Checks how Thermocline belongs to a Linux desktop: its entry, its metadata, a Debian package, which is built from
# target/debug/thermocline (or is DEB), installed into a folder, started there and removed, and an AppImage, which is made of that
# package and started. The macOS bundle is put together too.
# Needs Debian or Ubuntu; installs what it misses. Usage: bash packaging/test.sh [DEB]
set -euo pipefail
deb=${1:+$(realpath "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PACKAGER=0.11.8
id=org.thermocline.Thermocline
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
work=$(mktemp -d)
pids=()
clean() {
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null
  wait
  rm -rf "$work"
}
trap clean EXIT

fail() { echo "packaging/test.sh: $*" >&2; exit 1; }

as_root=$([[ $EUID -eq 0 ]] || echo sudo)
missing=()
for tool in desktop-file-validate:desktop-file-utils appstreamcli:appstream fakeroot:fakeroot Xvfb:xvfb \
  xdotool:xdotool xprop:x11-utils python3:python3 mksquashfs:squashfs-tools; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
if ((${#missing[@]})); then
  $as_root apt-get update -qq && $as_root apt-get install -y -qq "${missing[@]}" >/dev/null \
    || fail "these packages are needed: ${missing[*]}"
fi

# The sources.
desktop-file-validate "packaging/linux/$id.desktop"
appstreamcli validate --no-net "packaging/linux/$id.metainfo.xml"
grep -q "<release version=\"$version\"" "packaging/linux/$id.metainfo.xml" || fail "the metainfo does not have release $version"
python3 -c 'import sys, xml.etree.ElementTree as xml; xml.parse(sys.argv[1])' packaging/windows/thermocline.exe.manifest
# The hardened runtime has no exceptions, and the packager is told of both files; who signs is not said here, the workflow adds it.
python3 - packaging/macos/entitlements.plist packaging/macos/Info.plist <<'PYTHON'
import pathlib, plistlib, sys

entitlements, info = (plistlib.loads(pathlib.Path(file).read_bytes()) for file in sys.argv[1:])
assert entitlements == {}, f"entitlements.plist: exceptions {entitlements}"
assert info == {"LSRequiresCarbon": False, "NSSupportsAutomaticGraphicsSwitching": True}, f"Info.plist: {info}"
PYTHON
for line in 'info-plist-path = "../packaging/macos/Info.plist"' 'entitlements = "../packaging/macos/entitlements.plist"'; do
  grep -qxF "$line" app/Cargo.toml || fail "app/Cargo.toml does not have $line"
done
! grep -q '^signing-identity' app/Cargo.toml || fail "app/Cargo.toml has a signing identity"

# The packages.
if [[ -z $deb ]]; then
  packager=$PWD/target/tools/bin/cargo-packager
  if [[ $("$packager" --version 2>/dev/null) != "cargo-packager $PACKAGER" ]]; then
    cargo install --quiet --locked --debug --root target/tools --version "$PACKAGER" cargo-packager
  fi
  bash packaging/linux/manual.sh target/debug/thermocline target/manual
  # In app, because the packager looks through every folder below for configurations.
  (cd app && "$packager" --formats deb,app --out-dir "$work/out")
  deb=$(echo "$work"/out/*.deb)
  python3 - "$work/out/Thermocline.app/Contents" "$id" "$version" <<'PYTHON'
import pathlib, plistlib, sys

bundle, identifier, version = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
info = plistlib.loads((bundle / "Info.plist").read_bytes())
wanted = {
    "CFBundleIdentifier": identifier, "CFBundleName": "Thermocline", "CFBundleShortVersionString": version,
    "LSApplicationCategoryType": "public.app-category.utilities", "NSHighResolutionCapable": True, "LSRequiresCarbon": False,
}
wrong = {key: info.get(key) for key, value in wanted.items() if info.get(key) != value}
assert not wrong, f"Info.plist: {wrong}"
for file in ("MacOS/" + info["CFBundleExecutable"], "Resources/" + info["CFBundleIconFile"]):
    assert (bundle / file).is_file(), f"the bundle has no {file}"
PYTHON
fi

# Installed into a folder.
root=$work/root
export PATH=$PATH:/usr/sbin:/sbin
scratch() { fakeroot dpkg --root="$root" --force-depends --force-not-root "$@" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; fail "dpkg $*"; }; }
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
scratch --install "$deb"
for file in bin/thermocline{,-server} "share/applications/$id.desktop" "share/metainfo/$id.metainfo.xml" share/doc/thermocline/copyright \
  share/icons/hicolor/{16x16,32x32,48x48,128x128,256x256,512x512}/apps/thermocline.png \
  share/icons/hicolor/scalable/apps/thermocline.svg share/man/man1/{thermocline,thermocline-run,thermocline-serve}.1.gz \
  share/bash-completion/completions/thermocline share/zsh/vendor-completions/_thermocline \
  share/fish/vendor_completions.d/thermocline.fish; do
  [[ -s $root/usr/$file ]] || fail "the package has no /usr/$file"
done
# Pages can be read, and the completion of bash knows the commands.
zcat "$root/usr/share/man/man1/thermocline-serve.1.gz" | grep -q '^\.SH OPTIONS' || fail "the manual page has no options"
bash -c 'source "$1"; COMP_WORDS=(thermocline ben) COMP_CWORD=1; _thermocline thermocline ben thermocline; [[ ${COMPREPLY[*]} == bench ]]' \
  - "$root/usr/share/bash-completion/completions/thermocline" || fail "bash does not complete ben to bench"
# The entry's program and icon are those of the package, and so are the metadata.
grep -q '^Exec=thermocline ' "$root/usr/share/applications/$id.desktop"
grep -q '^Icon=thermocline$' "$root/usr/share/applications/$id.desktop"
appstreamcli validate-tree --no-net "$root/usr" >"$work/tree.log" 2>&1 || { cat "$work/tree.log"; fail "appstreamcli validate-tree"; }
# Everything it depends on can be had, and it does not want a newer libc than it says.
apt-get install --simulate -qq "$deb" >/dev/null 2>&1 || { $as_root apt-get update -qq; apt-get install --simulate -qq "$deb" >/dev/null; }
said=$(dpkg-deb --field "$deb" Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p')
wanted=$(objdump -T "$root"/usr/bin/thermocline{,-server} | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
dpkg --compare-versions "${wanted#GLIBC_}" le "$said" || fail "the program wants $wanted, the package says libc6 >= $said"

# Started there.
for name in thermocline thermocline-server; do
  [[ $("$root/usr/bin/$name" --version) == "$name $version" ]] || fail "$name --version is not $version"
done
. tests/screen.sh
screen "$work" 1280x1024
pids+=("$screen_pid")
# opens PROGRAM OPTIONS...: whether it opens its window; it has an empty home, where the graphics driver keeps nothing either.
opens() {
  local app window= end=$((SECONDS + 120))
  HOME=$work/home XDG_RUNTIME_DIR=$work/run WAYLAND_DISPLAY='' MESA_SHADER_CACHE_DISABLE=true "$@" >"$work/app.log" 2>&1 & app=$!
  pids+=("$app")
  until [[ $window ]]; do
    kill -0 "$app" 2>/dev/null || { cat "$work/app.log"; fail "$*: ended by itself"; }
    ((SECONDS < end)) || { cat "$work/app.log"; fail "$*: no window called Thermocline after 120 s"; }
    sleep 0.2
    window=$(xdotool search --onlyvisible --name '^Thermocline$' 2>/dev/null | head -1) || true
  done
  [[ $(xprop -id "$window" WM_CLASS) == *"\"$id\""* ]] || fail "$*: the window is not of class $id"
  [[ $(xprop -id "$window" _NET_WM_ICON) == *"128 x 128"* ]] || fail "$*: the window has no icon of 128 pixels"
  # The window's own program: an AppImage waits for the one that it starts, and is left alone by what ends that.
  kill "$(xdotool getwindowpid "$window")"
  wait "$app" || true
}
mkdir "$work/home" "$work/run" "$work/stick"
unset XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME
opens "$root/usr/bin/thermocline"
[[ -s $work/home/.local/share/thermocline/chats.db ]] || fail "the installed program keeps no chats in ~/.local/share/thermocline"
# The page that its user can send: kernels held against the CPU's and timed, and a model planned and measured.
HOME=$work/home XDG_RUNTIME_DIR=$work/run "$root/usr/bin/thermocline" report --quick --device 0 --out "$work/report.html" >"$work/report.log" 2>&1 \
  || fail "the installed program writes no report: $(tail -n 3 "$work/report.log")"
for part in 'kernels are right' 'a hand-over takes' 'tokens/s planned' '<td>neurons, exact</td>'; do
  grep -q "$part" "$work/report.html" || {
    cp "$work/report.html" target/report-failed.html
    fail "the report of the installed program lacks '$part'; see target/report-failed.html"
  }
done
! grep -q 'failed: ' "$work/report.html" || fail "the report of the installed program has a failure: $(grep -o 'failed: [^<]*' "$work/report.html")"
rm -r "$work/home" && mkdir "$work/home"
# portable FILE OPTIONS...: whether the program FILE keeps everything beside itself.
portable() {
  opens "$@" --portable
  [[ -s ${1%/*}/thermocline-data/chats.db ]] || fail "$* --portable: no chats in thermocline-data beside it"
  local left
  left=$(find "$work/home" -type f -not -path '*/.cache/fontconfig/*')
  [[ -z $left ]] || fail "$* --portable: leaves $left at home"
}
cp "$root/usr/bin/thermocline" "$work/stick"
portable "$work/stick/thermocline"

# The AppImage. The same package always becomes the same one, so that the one beside DEB is also the one that is started here.
name=thermocline_${version}_x86_64.AppImage
image=$work/images/$name
for folder in "$work/images" "$work/again"; do
  bash packaging/linux/appimage.sh "$deb" "$folder" >/dev/null
done
for other in "$work/again/$name" "$(dirname "$deb")/$name"; do
  [[ ! -e $other ]] || cmp "$image" "$other" || fail "$other is not what becomes of $deb"
done
[[ $(od -An -tx1 -j8 -N3 "$image") == " 41 49 02" ]] || fail "$name does not say that it is an AppImage of type 2"
(cd "$work" && "$image" --appimage-extract >/dev/null)
inside=$work/squashfs-root
# Its files are those of the package; at its top is what desktops take it up by.
diff -r --exclude="$id.desktop" "$root/usr" "$inside/usr" || fail "$name has other files than the package"
appstreamcli validate-tree --no-net "$inside/usr" >"$work/tree.log" 2>&1 || { cat "$work/tree.log"; fail "appstreamcli validate-tree"; }
[[ $(cd "$inside" && echo *.desktop) == "$id.desktop" ]] || fail "$name has another entry at its top than $id.desktop"
desktop-file-validate "$inside/$id.desktop"
cmp "$inside/$id.desktop" "$inside/usr/share/applications/$id.desktop"
for line in 'Exec=thermocline %f' Icon=thermocline X-AppImage-Name=Thermocline "X-AppImage-Version=$version" X-AppImage-Arch=x86_64; do
  grep -qxF "$line" "$inside/$id.desktop" || fail "the entry of $name does not have $line"
done
for icon in thermocline.png .DirIcon; do
  cmp assets/icon/png/256.png "$inside/$icon"
done
# Started: by itself where there is FUSE (elsewhere it tells what to do), and anywhere if its files may be unpacked.
if said=$("$image" --version 2>&1); then
  [[ $said == "thermocline $version" ]] || fail "$name --version: $said"
else
  [[ $said == *--appimage-extract* ]] || fail "$name --version: $said"
fi
mkdir "$work/unpacked"
ln -s unpacked "$work/link"
export TMPDIR=$work/link
[[ $("$image" --appimage-extract-and-run --version) == "thermocline $version" ]] || fail "$name --version is not $version"
opens "$image" --appimage-extract-and-run
[[ -s $work/home/.local/share/thermocline/chats.db ]] || fail "$name keeps no chats in ~/.local/share/thermocline"
rm -r "$work/home" && mkdir "$work/home"
portable "$image" --appimage-extract-and-run
left=$(ls "$work/unpacked")
[[ -z $left ]] || fail "$name leaves $left where it unpacks its files"
unset TMPDIR

# And removed.
scratch --purge thermocline
left=$(find "$root" -path "$root/var" -prune -o -type f -print)
[[ -z $left ]] || fail "removed, the package leaves $left"
kib() { echo "$(basename "$1"), $(du -k "$1" | cut -f1) KiB"; }
echo "packaging: entry, metadata, packages and windows are as they should be ($(kib "$deb"); $(kib "$image"))"
