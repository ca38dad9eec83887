//! Accepts the flags of llama.cpp's programs. A flag becomes the equivalent flag of this program. A
//! flag for something that this program always does is dropped. Other flags are refused with a
//! replacement.

use std::ffi::OsString;

use crate::failure::{Failure, Outcome};

/// A number of layers that means "all layers" to llama.cpp's users.
const ALL_LAYERS: i64 = 99;

/// Meaning of a llama.cpp flag in this program.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// An equivalent flag, with the same value.
    Flag(&'static str),
    /// An equivalent flag, which the command may not have. The sentence then says what to do.
    FlagOr(&'static str, &'static str),
    /// No effect: this program always behaves so.
    Always,
    /// Like `Always`, for a flag with a value. The value is dropped.
    AlwaysChosen,
    /// No equivalent. The sentence says what to type instead.
    Instead(&'static str),
    /// `-ngl N`: layers in GPU memory.
    GpuLayers,
    /// `-fa [on|off|auto]`: attention without a score matrix.
    FlashAttention,
    /// `-ctk TYPE`, `-ctv TYPE`: types of keys and values in the cache.
    CacheType,
    /// `-n N`: tokens to generate, -1 for no limit.
    Predict,
}

use Meaning::{Always, AlwaysChosen, CacheType, Flag, FlagOr, FlashAttention, GpuLayers, Instead, Predict};

const GPU_MEMORY: &str = "--vram BYTES limits the GPU memory, and measured speeds decide which weights it holds";
const CHAT: &str = "`thermocline chat` starts a conversation, `thermocline run` answers one prompt";
const FORM: &str = "`thermocline run` has this flag; a request to `serve` contains its own `response_format`";
const DRAFT: &str =
    "this command has no draft model; `run`, `chat`, `serve`, `plan` and `bench --streams` have --draft FILE";
const DOWNLOAD: &str = "download the file first, on the window's Models page or with `hf download OWNER/NAME FILE`, then open it with -m FILE";

/// Flags that this program names differently or does not have.
const FLAGS: &[(&[&str], Meaning)] = &[
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], GpuLayers),
    (&["-fa", "--flash-attn"], FlashAttention),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], CacheType),
    (&["-n", "--predict", "--n-predict"], Predict),
    (&["--ctx-size"], Flag("--context")),
    (&["-np", "--parallel"], FlagOr("--parallel", "requests wait in a queue, and --queue N sets its length")),
    (&["-a", "--alias"], FlagOr("--alias", "the name of the model comes from its file")),
    (&["-dev"], Flag("--device")),
    (&["-sys", "--system-prompt"], FlagOr("--system", "a request contains its own system prompt")),
    (&["--repeat-last-n"], Flag("--penalty-last-n")),
    (&["--typical-p"], Flag("--typical")),
    (&["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"], Instead(DOWNLOAD)),
    (&["-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"], Instead(GPU_MEMORY)),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], Instead("--device NAME chooses the GPU")),
    (&["-nkvo", "--no-kv-offload"], Instead(GPU_MEMORY)),
    (&["-cnv", "--conversation", "-i", "--interactive", "-no-cnv", "--no-conversation"], Instead(CHAT)),
    (&["-md", "--model-draft"], FlagOr("--draft", DRAFT)),
    (&["--draft-max", "--draft-n", "--draft-min", "--draft-n-min", "--draft-p-min"], AlwaysChosen),
    (&["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "-cd", "--ctx-size-draft"], AlwaysChosen),
    (
        &["--chat-template", "--chat-template-file"],
        Instead("--raw uses the text without a template; otherwise the model's own template is used"),
    ),
    (&["--lora", "--lora-scaled", "--control-vector"], Instead("use a model with the adapter merged into it")),
    (&["-mm"], FlagOr("--mmproj", "a picture needs `run`, `chat`, `serve` or `logits`, which have --mmproj FILE")),
    (&["-mmu", "--mmproj-url"], Instead(DOWNLOAD)),
    (&["--no-mmproj-offload"], Always),
    (
        &["--no-mmproj", "--no-mmproj-auto"],
        Instead("a vision tower beside the model is always opened; move its file to another folder"),
    ),
    (&["--grammar", "--grammar-file", "--json-schema", "--json-schema-file"], Instead(FORM)),
    (&["-j"], FlagOr("--json-schema", "a request contains its own `response_format`")),
    (&["--jinja", "-cb", "--cont-batching", "--metrics", "--slots", "--no-webui", "--no-warmup"], Always),
    (&["--embedding", "--embeddings", "--props", "--log-disable", "--swa-full"], Always),
    (&["-ub", "--ubatch-size"], Flag("--prompt-chunk")),
    (&["-b", "--batch-size", "-tb", "--threads-batch"], AlwaysChosen),
];

/// The arguments of a command, and a note for each dropped or reinterpreted flag.
#[derive(Debug, PartialEq, Eq)]
pub struct Translated {
    /// Arguments in this program's terms.
    pub args: Vec<OsString>,
    /// Sentences about effects that a user of llama.cpp might not expect.
    pub notes: Vec<String>,
}

/// Translates llama.cpp's flags in the arguments `args` of one command. `has` tests whether the
/// command has a flag.
pub fn translate(args: Vec<OsString>, has: &dyn Fn(&str) -> bool) -> Outcome<Translated> {
    let mut out = Translated { args: Vec::with_capacity(args.len()), notes: Vec::new() };
    let mut cache: Option<(String, String)> = None;
    let mut rest = args.into_iter().peekable();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            out.args.push(arg);
            out.args.extend(rest);
            break;
        }
        let Some(text) = arg.to_str() else {
            out.args.push(arg);
            continue;
        };
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (text.to_owned(), None),
        };
        let Some(meaning) = FLAGS.iter().find(|(names, _)| names.contains(&&*name)).map(|(_, meaning)| *meaning) else {
            out.args.push(arg);
            continue;
        };
        // The program's own flags keep their meaning, including other commands' `-n -1` and `-i`.
        if !matches!(meaning, Predict) && has(&name) {
            out.args.push(arg);
            continue;
        }
        let mut value = |what: &str| -> Outcome<String> {
            let given = joined.clone().or_else(|| rest.next().and_then(|next| next.into_string().ok()));
            given.ok_or_else(|| Failure::usage(format!("{name}: expected {what} after it, got nothing")))
        };
        match meaning {
            Flag(flag) => out.args.extend(pair(flag, value("a value")?)),
            FlagOr(flag, _) if has(flag) => out.args.extend(pair(flag, value("a value")?)),
            FlagOr(_, instead) | Instead(instead) => return Err(refused(&name, instead)),
            Always => {}
            AlwaysChosen => {
                let value = value("a value")?;
                out.notes.push(format!("{name} {value}: Thermocline chooses this value itself"));
            }
            Predict if has("--max-tokens") => match value("a number of tokens")? {
                // -1 means no limit, as does leaving out the flag.
                text if text == "-1" => {}
                text => out.args.extend(pair("--max-tokens", text)),
            },
            Predict => out.args.push(arg),
            GpuLayers if !has("--device") => out.args.push(arg),
            GpuLayers => out.add_gpu_layers(&name, &value("a number of layers")?)?,
            FlashAttention => {
                let next = rest.peek().and_then(|next| next.to_str());
                let follows = next.is_some_and(|next| matches!(next, "on" | "off" | "auto" | "0" | "1"));
                let given = match joined.clone() {
                    None if follows => rest.next().and_then(|next| next.into_string().ok()),
                    joined => joined,
                };
                if matches!(given.as_deref(), Some("off" | "0")) {
                    return Err(refused(
                        &format!("{name} off"),
                        "leave it out, because attention never stores its scores here",
                    ));
                }
            }
            CacheType => {
                let ty = value("a type")?;
                if let Some((other, first)) = cache.replace((name.clone(), ty.clone()))
                    && first != ty
                {
                    let got = format!("{other} {first} {name} {ty}");
                    return Err(refused(&got, "--kv-type TYPE: keys and values have one type"));
                }
            }
        }
    }
    if let Some((name, ty)) = cache {
        out.notes.push(format!("{name} {ty}: --kv-type {ty}, for keys and values"));
        let at = out.args.iter().position(|arg| arg == "--").unwrap_or(out.args.len());
        drop(out.args.splice(at..at, pair("--kv-type", ty)));
    }
    Ok(out)
}

impl Translated {
    /// Translates a number of GPU layers: 0 layers selects the CPU, all layers need no flag.
    fn add_gpu_layers(&mut self, name: &str, layers: &str) -> Outcome<()> {
        if layers == "0" {
            self.args.extend(pair("--device", "cpu".to_owned()));
            return Ok(());
        }
        if !is_all(layers) {
            return Err(refused(&format!("{name} {layers}"), GPU_MEMORY));
        }
        self.notes.push(format!(
            "{name} {layers}: the GPU holds as much of the model as fits; --vram BYTES limits its memory"
        ));
        Ok(())
    }
}

fn pair(flag: &str, value: String) -> [OsString; 2] {
    [flag.into(), value.into()]
}

/// True for a number of layers that no model has, and for words that mean all layers.
fn is_all(layers: &str) -> bool {
    matches!(layers, "all" | "auto" | "-1") || layers.parse::<i64>().is_ok_and(|count| count >= ALL_LAYERS)
}

fn refused(flag: &str, instead: &str) -> Failure {
    let message = format!("{flag} is a flag of llama.cpp that Thermocline does not have");
    Failure::Usage { message, hint: Some(instead.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVE: [&str; 8] =
        ["--device", "--kv-type", "--max-tokens", "--draft", "--alias", "--system", "--metrics-x", "-x"];

    fn translated(args: &str) -> Result<(String, usize), String> {
        let args = args.split_whitespace().map(OsString::from).collect();
        match translate(args, &|flag| SERVE.contains(&flag)) {
            Ok(Translated { args, notes }) => {
                let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap().to_owned()).collect();
                Ok((args.join(" "), notes.len()))
            }
            Err(failure) => Err(format!("{} / {}", failure.message().unwrap(), failure.hint().unwrap_or_default())),
        }
    }

    #[test]
    fn flags_of_llama_cpp_become_ours() {
        for (theirs, ours, notes) in [
            ("-ngl 0 m.gguf", "--device cpu m.gguf", 0),
            ("-ngl 99 m.gguf", "m.gguf", 1),
            ("--n-gpu-layers=all", "", 1),
            ("-fa -c 8k", "-c 8k", 0),
            ("-fa on -c 8k", "-c 8k", 0),
            ("-fa m.gguf", "m.gguf", 0),
            ("-ctk q8_0 -ctv q8_0 m.gguf", "m.gguf --kv-type q8_0", 1),
            ("-ctk f16 -- x", "--kv-type f16 -- x", 1),
            ("-n -1 -p x", "-p x", 0),
            ("-n 7", "--max-tokens 7", 0),
            ("--n-predict 7", "--max-tokens 7", 0),
            ("--ctx-size 4096", "--context 4096", 0),
            ("-a name --metrics --jinja", "--alias name", 0),
            ("-b 2048 -ub 512", "--prompt-chunk 512", 1),
            ("-md small.gguf --draft-max 8 --draft-p-min=0.6 -ngld 99", "--draft small.gguf", 3),
            ("--model-draft=small.gguf", "--draft small.gguf", 0),
            ("-p -- -ngl 5", "-p -- -ngl 5", 0),
            ("--other -x", "--other -x", 0),
        ] {
            assert_eq!(translated(theirs), Ok((ours.to_owned(), notes)), "{theirs}");
        }
    }

    #[test]
    fn flags_without_a_meaning_here_are_refused_with_what_to_type() {
        for (theirs, says) in [
            ("-ngl 20", "--vram"),
            ("-ngl", "got nothing"),
            ("-fa off", "leave it out"),
            ("-ctk q8_0 -ctv f16", "--kv-type"),
            ("-np 4", "--queue"),
            ("-hf a/b:Q4_K_M", "hf download"),
            ("-md", "got nothing"),
            ("-cnv", "thermocline chat"),
        ] {
            let refusal = translated(theirs).unwrap_err();
            assert!(refusal.contains(says), "{theirs}: {refusal}");
        }
    }
}
