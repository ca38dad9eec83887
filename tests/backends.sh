#!/usr/bin/env bash
# Opens the window on a virtual screen while graphics drivers are missing: it has to find the one that is left, to begin with it
# next time, and to say why if there is none. Needs the packages in PACKAGES, which tests/run.sh installs.
#
# Usage: bash tests/backends.sh [PROGRAM]    PROGRAM: the built binary [default: target/debug/thermocline]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PACKAGES=(xvfb xdotool mesa-vulkan-drivers libvulkan1 libegl1 libgl1-mesa-dri libxkbcommon-x11-0 libx11-6)
[[ ${1:-} == --packages ]] && { echo "${PACKAGES[@]}"; exit; }
program=$(realpath "${1:-target/debug/thermocline}")

fail() {
  echo "tests/backends.sh: $*" >&2
  [[ -s ${log:-} ]] && tail -20 "$log" >&2
  exit 1
}
[[ -x $program ]] || fail "no program at $program: cargo build"
for tool in Xvfb xdotool; do
  command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install ${PACKAGES[*]}"
done

. tests/screen.sh
own_folder
export HOME=$work/home
unset WGPU_BACKEND
mkdir -m 700 "$HOME"
screen "$work" 1440x900 || fail "no screen"
pids+=("$screen_pid")

# What hides every driver of an interface from its loader.
no_vulkan=(VK_DRIVER_FILES="$work/none.json" VK_ICD_FILENAMES="$work/none.json")
no_gl=(__EGL_VENDOR_LIBRARY_FILENAMES="$work/none.json")

# opens BACKEND DATA [NAME=VALUE]...: a window comes up, drawn by BACKEND, which is remembered in the folder DATA.
opens() {
  local backend=$1 data=$2 end=$((SECONDS + 60)) app
  shift 2
  env "$@" RUST_LOG=thermocline=info "$program" --data "$data" </dev/null >"$log" 2>&1 & app=$!
  pids+=("$app")
  until grep -q "\"worked\": \"$backend\"" "$data/settings.json" 2>/dev/null && xdotool search --onlyvisible --pid "$app" >/dev/null 2>&1; do
    kill -0 "$app" 2>/dev/null || fail "the program ended: $*"
    ((SECONDS < end)) || fail "no window drawn by $backend: $*; $(cat "$data/settings.json" 2>/dev/null)"
    sleep 0.1
  done
  kill -0 "$app" 2>/dev/null || fail "the program ended: $*"
  # A thread of its own writes the log.
  sleep 1
  kill "$app"
  wait "$app" 2>/dev/null || true
  # The bugs of the drivers are no bugs of the program.
  ! grep -q "has a bug" "$log" || fail "a panic was reported: $*"
}
# tried BACKEND: whether the last window was refused by it.
tried() { grep -q "not drawn with this backend backend=\"$1\"" "$log"; }

echo "with all drivers the better one draws"
opens vulkan "$work/a"

echo "without Vulkan OpenGL draws, and is remembered"
opens gl "$work/b" "${no_vulkan[@]}"
tried vulkan || fail "Vulkan was not tried before"
opens gl "$work/b"
! tried vulkan || fail "Vulkan was tried before the one that worked"

echo "the one that worked may fail, too"
opens vulkan "$work/b" "${no_gl[@]}"
tried gl || fail "OpenGL was not tried first"

echo "a setting is tried first, WGPU_BACKEND alone"
mkdir "$work/c"
echo '{"drawing": {"backend": "gl"}}' >"$work/c/settings.json"
opens gl "$work/c"
grep -q '"backend": "gl"' "$work/c/settings.json" || fail "the setting is gone"
opens vulkan "$work/c" WGPU_BACKEND=vulkan

# refuses LINES [NAME=VALUE]...: there is no window, and standard error is LINES.
refuses() {
  local lines=$1 code=0
  shift
  env "$@" "$program" --data "$work/d" </dev/null >"$log" 2>&1 || code=$?
  ((code == 2)) || fail "exit code $code instead of 2: $*"
  [[ $(<"$log") == $lines ]] || fail "other words than expected: $*"
}
echo "if there is none, each says why"
refuses $'error: no window: no graphics backend can draw it\n  Vulkan: *\n  OpenGL: *' "${no_vulkan[@]}" "${no_gl[@]}"
refuses $'error: no window: no graphics backend can draw it\n  OpenGL: *' "${no_gl[@]}" WGPU_BACKEND=gl
refuses 'error: no window: WGPU_BACKEND: expected one of *, got `glide`' WGPU_BACKEND=glide
echo "all backends were found"
