#!/usr/bin/env bash
# Makes the installer of the Windows programs on Linux and uses it under Wine: installs, starts both programs, installs over them, removes
# them. Needs Debian or Ubuntu, and installs the tools that are missing. Wine's messages go to a log. PROGRAMS is the folder of
# thermocline.exe and thermocline-server.exe. Without it the script tests the installer with programs that only print their version. The
# script leaves the installer in FOLDER.
#
# Usage: bash packaging/windows/test.sh [PROGRAMS [FOLDER]]
set -euo pipefail
programs=${1:+$(realpath -e "$1")}
out=${2:+$(realpath -m "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() { echo "packaging/windows/test.sh: $*" >&2; tail -20 "$work/wine.log" >&2 2>/dev/null || true; exit 1; }
work=$(mktemp -d)
export LC_ALL=C.UTF-8 WINEPREFIX=$work/prefix WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml='
clean() {
  wineserver -k 2>/dev/null || /usr/lib/wine/wineserver64 -k 2>/dev/null || true
  [[ ! ${screen_pid:-} ]] || kill "$screen_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT

missing=()
for tool in makensis:nsis wine:wine wine:wine64 Xvfb:xvfb; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
command -v x86_64-w64-mingw32-gcc >/dev/null || missing+=(gcc-mingw-w64-x86-64-posix)
if ((${#missing[@]})); then
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } \
    || fail "these packages are needed: ${missing[*]}"
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
names=(thermocline thermocline-server)
if [[ -z $programs ]]; then
  programs=$work/stand-ins
  mkdir "$programs"
  for name in "${names[@]}"; do
    printf '#include <stdio.h>\nint main(void) { puts("%s %s"); return 0; }\n' "$name" "$version" >"$work/stand-in.c"
    x86_64-w64-mingw32-gcc -O -s -o "$programs/$name.exe" "$work/stand-in.c"
  done
fi
setup=$work/thermocline_${version}_x64-setup.exe
makensis -V2 -WX -DVERSION="$version" -DPROGRAMS="$programs" -DOUT="$setup" packaging/windows/installer.nsi

# One screen for all: the uninstaller's copy of itself outlives the program that was started.
. tests/screen.sh
screen "$work" 1024x768 || fail "no screen"
in_wine() { timeout 300 wine "$@" >"$work/said" 2>>"$work/wine.log"; }
in_wine wineboot -i || fail "Wine does not start"
# Rust's standard library takes random numbers from a library that Wine has had for a short time only.
if [[ ! -e $WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll ]]; then
  cat >"$work/random.c" <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T len) { return SystemFunction036(to, (ULONG)len); }
C
  x86_64-w64-mingw32-gcc -shared -O -s -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" "$work/random.c" -ladvapi32
fi
home=$(echo "$WINEPREFIX"/drive_c/users/*/AppData/Local | tr ' ' '\n' | grep -v /Public/ | head -1)
folder=$home/Programs/Thermocline
key='HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\org.thermocline.Thermocline'
# value NAME: what the registry says of the program.
value() { in_wine reg query "$key" /v "$1" && sed -n "s/^ *$1 *REG_[A-Z]* *//p" "$work/said" | tr -d '\r'; }
shortcut() { find "$WINEPREFIX/drive_c/users" -name Thermocline.lnk | grep -q .; }

# there FOLDER: whether both programs are installed there and start, and whether Windows knows them.
there() {
  local file name
  for file in uninstall.exe LICENSE-MIT LICENSE-APACHE; do
    [[ -s $1/$file ]] || fail "no $file in $1"
  done
  for name in "${names[@]}"; do
    cmp "$programs/$name.exe" "$1/$name.exe" || fail "the installed $name.exe differs from the packed program"
    in_wine "$1/$name.exe" --version || fail "the installed $name.exe does not start"
    [[ $(tr -d '\r' <"$work/said") == "$name $version" ]] || fail "the installed $name.exe is not $version: $(cat "$work/said")"
  done
  [[ $(value DisplayVersion) == "$version" ]] || fail "Windows knows another version than $version: $(cat "$work/said")"
  shortcut || fail "no shortcut in the start menu"
}
# gone FOLDER: whether nothing is left of it.
gone() {
  [[ ! -e $1 ]] || fail "removed, it leaves $(find "$1")"
  ! value DisplayVersion >/dev/null || fail "removed, Windows still knows it"
  ! shortcut || fail "removed, it leaves its shortcut"
}
# The uninstaller copies itself and ends; the copy goes on.
remove() {
  local end=$((SECONDS + 60))
  in_wine "$1/uninstall.exe" /S || fail "the uninstaller fails"
  while [[ -e $1/uninstall.exe ]] && ((SECONDS < end)); do sleep 0.2; done
  sleep 1
}

in_wine "$setup" /S || fail "the installer fails"
there "$folder"
# Again, over itself, beside a file that is not the installer's.
echo mine >"$folder/notes.txt"
in_wine "$setup" /S || fail "the installer fails where the program is already"
there "$folder"
remove "$folder"
[[ $(ls "$folder") == notes.txt ]] || fail "the uninstaller leaves or takes too much: $(ls "$folder" 2>&1)"
rm -r "$folder"
gone "$folder"

# Into a folder with letters of other alphabets. (With a blank in it Wine would quote the option, which NSIS does not take.)
other="$WINEPREFIX/drive_c/Müllers-Programme-模型"
in_wine "$setup" /S '/D=C:\Müllers-Programme-模型' || fail "the installer fails for another folder"
there "$other"
remove "$other"
gone "$other"
if [[ $out ]]; then
  mkdir -p "$out"
  cp "$setup" "$out"
fi
echo "installer: ${names[*]}, $(du -k "$setup" | cut -f1) KiB: installed, started, installed again and removed under $(wine --version)"
