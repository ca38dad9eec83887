#!/usr/bin/env bash
# Walks through the window as a person would, from an empty home, and takes a picture at every point: the first screen, licences,
# chats read from a file, every element of Markdown, code in a list, a message sent while the chat is scrolled up, a chat with its
# map, a word explained, a pinned neuron, a token held and compared, a change that Escape keeps, the name of a device, a dragged
# budget, a message that is too long, models, a search of the hub, settings; and the maps of a SwiGLU and of an MoE model. At three
# sizes, dark and light. A control that is missing fails the walk. Look at the pictures one by one.
#
# Usage: bash tests/looks.sh FOLDER [PROGRAM]    PROGRAM: the built binary [default: target/debug/thermocline]
#   SIZES="1280x800 900x600" and THEMES=dark in the environment choose some of them; MODEL=FILE takes the maps of another model.
# Needs the packages that `bash tests/window.sh --packages` lists. The search asks huggingface.co: without a network its error is
# shown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?usage: bash tests/looks.sh FOLDER [PROGRAM]}
mkdir -p "$folder"
folder=$(realpath "$folder") program=$(realpath "${2:-target/debug/thermocline}")
maps=(swiglu=tests/fixtures/gguf/llama-silu-gqa-256-Q8_0.gguf moe=tests/fixtures/models/mixtral)
[[ ${MODEL:-} ]] && maps=("model=$(realpath "$MODEL")")
sizes=${SIZES:-1280x800 2560x1440 900x600} themes=${THEMES:-dark light}

fail() {
  echo "tests/looks.sh: $* (${theme:-} ${size:-})" >&2
  [[ -s ${log:-} ]] && tail -20 "$log" >&2
  [[ ${window:-} ]] && import -window "$window" "$folder/failed.png" 2>/dev/null && echo "see $folder/failed.png" >&2
  exit 1
}
[[ -x $program ]] || fail "no program at $program: cargo build"

. tests/screen.sh
own_folder
screen "$work" 2560x1440 || fail "no screen"
pids+=("$screen_pid")
screen_readers "$work" || fail "no screen readers"
pids+=("$bus_pid" "$launcher_pid")

seen() { /usr/bin/python3 tests/seen.py "$@" || fail "looking for: $*"; }
there() { /usr/bin/python3 tests/seen.py place "$1" >/dev/null 2>&1; }
has_window() { window=$(xdotool search --onlyvisible --name '^Thermocline$' 2>/dev/null | head -1); [[ $window ]]; }
# still NAME: a picture once the window has come to rest, which is seen by two more that are the same.
still() {
  local file=$folder/$1-$theme-$size.png before='' now same=0 n
  for n in {1..60}; do
    sleep 0.4
    import -window "$window" "$file"
    now=$(identify -format '%#' "$file")
    if [[ $now == "$before" ]]; then same=$((same + 1)); else same=0; fi
    ((same < 2)) || return 0
    before=$now
  done
  fail "$1 does not come to rest"
}
# shot NAME: the same with the pointer out of the way.
shot() { xdotool mousemove --window "$window" 4 4; still "$1"; }
type_() { xdotool type --delay 5 "$1"; }
# ask TEXT: writes it into the field and waits until its answer can be copied.
ask() {
  click "entry:Message"
  type_ "$1"
  xdotool key Return
  answered "$1"
}
# answered TEXT: waits until TEXT was sent and its answer has ended.
answered() {
  seen wait 60 "label:$1" >/dev/null
  seen gone 240 "push button:Stop$"
  seen wait 60 "push button:Copy answer" >/dev/null
}
# wheel BUTTON: turns the wheel over the middle column.
wheel() { xdotool mousemove --window "$window" "$((${size%x*} / 2))" "$((${size#*x} / 2))" click --repeat 60 --delay 5 "$1"; }
# open [MODEL]: starts the program.
open() {
  "$program" "$@" >>"$log" 2>&1 & app=$! && pids+=("$app")
  for _ in {1..600}; do has_window && break; sleep 0.1; done
  [[ $window ]] || fail "no window"
  xdotool windowsize "$window" "${size%x*}" "${size#*x}" windowfocus "$window"
  # Its speed is there once the model is.
  seen wait 60 "push button:Speed" >/dev/null
}
quit() {
  seen close "$window"
  for _ in {1..100}; do kill -0 "$app" 2>/dev/null || { window=; return 0; }; sleep 0.1; done
  fail "the program does not end"
}
# The column of neurons and memory, which lies over the others in a narrow window.
narrow() { ((${size%x*} < 1100)); }
neurons() {
  local column="landmark:Neurons and memory"
  if ! narrow; then return 0; fi
  if there "$column"; then xdotool key ctrl+j; seen gone 30 "$column"; else xdotool key ctrl+j; seen wait 30 "$column" >/dev/null; fi
}
# Its upper end, where the map is: it comes back as it was scrolled.
to_map() { xdotool mousemove --window "$window" "$((${size%x*} - 150))" "$((${size#*x} / 2))" click --repeat 60 --delay 5 4; seen wait 60 "image:Map of neurons" >/dev/null; }

# Chats to be read from a file.
python3 - "$work/chats.json" <<'PYTHON'
import json, sys

def chat(title, question, answer):
    messages = [{"role": "user", "content": question, "created": 1000},
                {"role": "assistant", "parent": 0, "content": answer, "created": 1001}]
    return {"title": title, "created": 1000, "updated": 1001, "messages": messages}

elements = open("app/window/src/window/tests/elements.md", encoding="utf-8").read()
code = "Two steps:\n\n1. Write it:\n\n   ```rust\n   fn main() {\n       println!(\"a -> b\");\n   }\n   ```\n\n2. Run `~/it` and ~/other.\n"
headings = "\n\n".join(f"# {n}" for n in range(1, 41))
chats = [chat("Every element", "זוהי פסקה (12)", elements), chat("Code in a list", "How?", code), chat("Forty headings", "Go on.", headings)]
json.dump({"format": "thermocline.chats", "version": 1, "chats": chats}, open(sys.argv[1], "w", encoding="utf-8"))
PYTHON

first_and_licences() {
  shot first
  xdotool key ctrl+comma
  click "push button:Licences"
  shot licences
  # One after the other: a window that draws slowly would take a click that comes too soon for one at what is still open.
  xdotool key Escape
  seen gone 30 "push button:Close"
  xdotool key Escape
  seen gone 30 "push button:Back to the chat"
}

chats_of_a_file() {
  click "push button:Import and export"
  click "push button:Import chats"
  seen wait 15 "entry:Path" >/dev/null
  type_ "$work/chats.json"
  shot import
  xdotool key Return
  click "toggle button:Every element"
  seen wait 30 "push button:Edit answer" >/dev/null
  shot markdown-end
  wheel 4
  shot markdown
  click "toggle button:Code in a list"
  shot code
  click "push button:Copy code"
  click "toggle button:Forty headings"
  seen wait 30 "label:40" >/dev/null
  wheel 4
  seen wait 30 "push button:To the end" >/dev/null
  shot scrolled-up
  ask "Tell me a story about a ball."
  shot sent-while-scrolled-up
}

answer_and_map() {
  xdotool key ctrl+n
  seen wait 30 "push button:Other stories" >/dev/null
  ask "Tell me a story about a ball."
  shot chat
  click "push button:Which neurons made these words?"
  click "push button:Word after"
  seen wait 60 "push button:Show the neurons on the map" >/dev/null
  shot word
  click "push button:Back to the answer"
  neurons
  reach "image:Map of neurons"
  xdotool mousemove --window "$window" "$((box[0] + 80))" "$((box[1] + 60))"; sleep 0.3; xdotool click 1
  seen wait 30 "push button:Close this card" >/dev/null
  shot pinned
  click "push button:Close this card"
  click "push button:Hold this token"
  seen wait 30 "push button:Token after" >/dev/null
  click "push button:Token before"
  shot held
  click "toggle button:Compare"
  shot compared
  click "toggle button:Compared"
  click "toggle button:Live"
}

device_and_budget() {
  local adapter y left width
  click "combo box:The processor that runs the model"
  adapter=$(/usr/bin/python3 tests/seen.py list | sed -n "s/^toggle button .*'\(.*(software, slow, .*)\)'$/\1/p" | head -1)
  [[ $adapter ]] || fail "the picker offers no software adapter"
  click "toggle button:$adapter"
  seen wait 60 "label:in VRAM" >/dev/null
  shot device
  reach "slider:VRAM to use at most"
  y=$((box[1] + box[3] / 2)) left=$((box[0] + 8)) width=$((box[2] - 16))
  xdotool mousemove --window "$window" "$((left + width))" "$y" mousedown 1
  xdotool mousemove --window "$window" "$((left + width / 2))" "$y"; sleep 0.2
  xdotool mousemove --window "$window" "$((left + width * 3 / 10))" "$y"
  still budget-dragged
  xdotool mouseup 1
  shot budget
  neurons
}

change_and_long_message() {
  click "push button:Edit message"
  type_ " and a fox"
  xdotool key Escape
  seen wait 30 "Your change is not saved yet" >/dev/null
  shot change-after-escape
  click "push button:Cancel"
  click "entry:Message"
  type_ "$(printf 'This is a rather long sentence that says nothing at all, number %s. ' {1..30})"
  seen wait 60 "label:This message" >/dev/null
  xdotool key Return
  seen wait 60 "push button:Shorten the message" >/dev/null
  shot long
  click "entry:Message"
  xdotool key ctrl+a BackSpace
}

pages() {
  xdotool key ctrl+m
  seen wait 60 "label:For this computer" >/dev/null
  shot models
  click "entry:Search Hugging Face, or enter"
  type_ "gemma 4"
  xdotool key Return
  reach "push button:Close the search"
  shot search
  click "push button:Close the search"
  xdotool key ctrl+comma
  seen wait 30 "label:About" >/dev/null
  wheel 4
  shot settings
}

for size in $sizes; do
  for theme in $themes; do
    export HOME=$work/home-$theme-$size
    mkdir -p -m 700 "$HOME/.config/thermocline"
    echo "{\"theme\": \"$theme\", \"reduced_motion\": true}" >"$HOME/.config/thermocline/settings.json"
    open
    first_and_licences
    chats_of_a_file
    answer_and_map
    device_and_budget
    change_and_long_message
    pages
    quit
    for map in "${maps[@]}"; do
      open "${map#*=}"
      xdotool key ctrl+n
      seen gone 30 "push button:Copy answer"
      click "entry:Message"
      xdotool key ctrl+a
      type_ "abc"
      # Strengths are recorded while they are shown.
      neurons
      to_map
      xdotool key Return
      # Random weights seldom end an answer.
      sleep 5
      xdotool key Escape
      answered abc
      shot "map-${map%%=*}"
      quit
    done
    echo "    $theme $size"
  done
done
echo "$(find "$folder" -name '*.png' | wc -l) pictures in $folder"
