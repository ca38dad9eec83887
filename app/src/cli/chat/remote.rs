//! A chat with a server's model: `thermocline chat --remote URL`.

use std::{env, fs, path::PathBuf, thread};

use clap::Args;
use thermocline_engine::{
    session::Message,
    tokenizer::reasoning::transcript::{Thoughts, TranscriptWriter},
};

use thermocline_host::{
    engine_handle::{self, AnswerEnd, BATCH_INTERVAL},
    folders::Folders,
    remote::{KeyStore, RemoteClient, RemoteRequest, RemoteTimeouts, SecretKey, ServerAddress},
    units::{Limit, Seed},
};
use thermocline_terminal::{
    answer::{self, CompleteAnswer},
    answer_options::AnswerOptions,
    failure::{Failure, Outcome, one_line},
    generation_options::SamplingOptions,
    interrupt::InterruptWatch,
};

/// Environment variable with the server's key.
const KEY_VARIABLE: &str = "THERMOCLINE_REMOTE_KEY";

/// Most model names in an error.
const LISTED: usize = 10;

/// Options of a model on a server.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Server")]
pub struct RemoteOptions {
    /// Chat with a model of this server, which has OpenAI's API (vLLM, SGLang, llama-server,
    /// another Thermocline); --model names the model on the server [default: the server's only
    /// model]
    #[arg(long, value_name = "URL", conflicts_with_all = LOCAL.split(' '))]
    remote: Option<ServerAddress>,
    /// File whose first line is the server's key [default: the environment variable
    /// THERMOCLINE_REMOTE_KEY, or the key entered on the window's Models page]
    #[arg(long, value_name = "FILE", requires = "remote")]
    key_file: Option<PathBuf>,
}

/// Options that only a local engine has.
const LOCAL: &str = "\
    activation no_mmap sidecar draft mmproj context kv_type threads isa activations device vram gpu_tier sparsity adaptive static \
    no_counts split stream_prompts prompt_chunk typical penalty_last_n dry_multiplier dry_base dry_allowed_length \
    dry_last_n dry_breaker logit_bias on_full keep speculation drafts";

impl RemoteOptions {
    /// Opens the model of the server, if the options name one.
    pub fn open(&self, how: &AnswerOptions) -> Outcome<Option<RemoteChat>> {
        let Some(server) = &self.remote else { return Ok(None) };
        let client = RemoteClient::new(server.clone(), self.key(server)?, RemoteTimeouts::default());
        let model = match &how.model.model {
            Some(name) => name.display().to_string(),
            None => only_model(&client)?,
        };
        let mut settings = RemoteRequest::new(model);
        set_sampling(&mut settings, &how.sampling);
        settings.set("max_tokens", how.length.max_tokens.and_then(Limit::count));
        settings.set("stop", Some(how.length.stops()).filter(|stop| !stop.is_empty()));
        Ok(Some(RemoteChat { client, settings }))
    }

    fn key(&self, server: &ServerAddress) -> Outcome<Option<SecretKey>> {
        if let Some(path) = &self.key_file {
            let text = fs::read_to_string(path).map_err(|error| Failure::read(path, error))?;
            let key = SecretKey::new(text.lines().next().unwrap_or_default());
            let wrong =
                || format!("--key-file {}: expected a key of printable letters in its first line", path.display());
            return key.map(Some).ok_or_else(|| Failure::usage(wrong()));
        }
        if let Some(key) = env::var(KEY_VARIABLE).ok().and_then(|key| SecretKey::new(&key)) {
            return Ok(Some(key));
        }
        let Some(folders) = Folders::detect() else { return Ok(None) };
        KeyStore::of(&folders).get(server).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Finds the name of a server's only model.
fn only_model(client: &RemoteClient) -> Outcome<String> {
    let models = client.models().map_err(|error| Failure::Remote(error.to_string()))?;
    let server = client.server().host();
    match &models[..] {
        [model] => Ok(model.clone()),
        [] => Err(Failure::Remote(format!("{server} has no models"))),
        many => {
            let names: Vec<String> = many.iter().take(LISTED).map(|name| one_line(name)).collect();
            let more = if many.len() > LISTED { " ..." } else { "" };
            let hint = Some(format!("choose a model with --model NAME, one of {}{more}", names.join(", ")));
            Err(Failure::Usage { message: format!("{server} has {} models", many.len()), hint })
        }
    }
}

/// Sets the given sampling options. The server chooses the others.
fn set_sampling(request: &mut RemoteRequest, options: &SamplingOptions) {
    // As the user typed them: 0.7, not 0.699999988.
    let exact = |value: f32| value.to_string().parse::<f64>().unwrap_or(f64::from(value));
    request.set("temperature", options.temp.map(exact));
    request.set("top_k", options.top_k.map(|limit| limit.count_or(0)));
    request.set("top_p", options.top_p.map(exact));
    request.set("min_p", options.min_p.map(exact));
    request.set("repeat_penalty", options.repeat_penalty.map(exact));
    request.set("presence_penalty", options.presence_penalty.map(exact));
    request.set("frequency_penalty", options.frequency_penalty.map(exact));
    request.set("seed", options.seed.and_then(Seed::fixed));
}

/// A server's model, with the settings of its answers.
#[derive(Debug)]
pub struct RemoteChat {
    client: RemoteClient,
    settings: RemoteRequest,
}

impl RemoteChat {
    /// Names the model and its server in one line.
    pub fn name(&self) -> String {
        one_line(&format!("{} at {}", self.settings.model, self.client.server().host()))
    }

    /// States in a sentence where messages are sent.
    pub fn destination(&self) -> String {
        self.client.server().destination()
    }

    /// Requests an answer to `turns` and prints it as it arrives. Adds `regenerations` to the seed,
    /// if there is one.
    pub fn answer(&self, turns: &[Message], regenerations: u64) -> Outcome<CompleteAnswer> {
        let mut request = self.settings.clone();
        if let Some(seed) = request.settings.get("seed").and_then(serde_json::Value::as_u64) {
            request.set("seed", Some(seed.wrapping_add(regenerations)));
        }
        for turn in turns {
            let text = Thoughts::of(&turn.content).answer.trim_start();
            request.push_with_pictures(turn.role.name(), text, turn.pictures.clone());
        }
        let watch = InterruptWatch::start();
        let generation = engine_handle::Answer::start_remote(|| (), self.client.clone(), request);
        let (mut text, mut writer) = (String::new(), TranscriptWriter::default());
        loop {
            if watch.pressed() {
                generation.stop();
            }
            let update = generation.take_update();
            for (part, piece) in update.text.pieces() {
                let piece = writer.push(part, piece);
                answer::print(&piece)?;
                text.push_str(&piece);
            }
            match update.end {
                None => thread::sleep(BATCH_INTERVAL),
                Some(AnswerEnd::Done(reason, stats)) => {
                    return Ok(CompleteAnswer { text, tokens: Vec::new(), reason, stats });
                }
                Some(AnswerEnd::Failed(error)) => return Err(Failure::Engine(error)),
                Some(AnswerEnd::Refused(why)) => return Err(Failure::Remote(why)),
            }
        }
    }
}
