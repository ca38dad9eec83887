//! `thermocline serve`: an HTTP server for other programs.

use std::{
    env, fs,
    net::ToSocketAddrs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use thermocline_engine::{
    Error,
    session::{Engine, Pooling, Prompt},
};

use crate::{
    ModelLibrary, OpenModel, PictureAddresses, ServedModel, ServedModels, Server, ServerOptions, server_log::ServerLog,
    slot_memory::SlotMemory,
};
use thermocline_host::{
    engine_handle::{error_message, without_folder},
    library::ModelId,
    units,
};
use thermocline_terminal::{
    answer,
    answer_options::AnswerOptions,
    failure::{Failure, Outcome, one_line},
    interrupt::InterruptWatch,
    model_options::ModelOptions,
    named::by_name,
    termination::TerminationWatch,
};

/// Examples of the help page of `thermocline serve`.
pub const EXAMPLES: &str = "\
Examples:
  thermocline serve
  thermocline serve model.gguf --device gpu --vram 6GiB -c 8k
  thermocline serve folder-of-models --idle-unload 300
  thermocline serve model.gguf --host 0.0.0.0 --api-key SECRET
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

The base URL for clients of OpenAI's API is http://127.0.0.1:8080/v1. If a request omits a field,
the option of this command applies. Ctrl-C or SIGTERM ends the server after the current answer, or
after --drain seconds; a second Ctrl-C ends it at once.";

/// Environment variable that holds the key.
const KEY_VARIABLE: &str = "THERMOCLINE_API_KEY";

/// Interval between checks for Ctrl-C.
const POLL: Duration = Duration::from_millis(50);

/// Serves the model to other programs by OpenAI's HTTP API.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Model, as for --model, or a folder of models. A request names the model to load, and one
    /// model is loaded at a time
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    file: Option<PathBuf>,
    /// Address to listen at. The default accepts requests from this computer only; 0.0.0.0 accepts
    /// requests from every computer that can reach it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Name of the model for clients [default: the name of its file]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    alias: Option<String>,
    /// Port to listen at; 0 is any free port
    #[arg(short, long, value_name = "N", default_value_t = ServerOptions::PORT)]
    port: u16,
    /// Key that clients must present [default: the environment variable THERMOCLINE_API_KEY, or
    /// none]
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Option<String>,
    /// File whose first line is the key
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    api_key_file: Option<PathBuf>,
    /// Accept requests of web pages of this origin, like http://localhost:3000, or `*` for all
    /// origins; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Accept another host name for this computer, besides localhost, its own name and its
    /// addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Fetch pictures whose http or https addresses are in requests: `public`, from the internet
    /// only; `local`, also from this computer and private networks [default: refuse addresses;
    /// without a value: public]
    #[arg(long, value_name = "FROM", num_args = 0..=1, require_equals = true, default_missing_value = "public",
        value_parser = by_name(PictureAddresses::NAMED))]
    allow_image_urls: Option<PictureAddresses>,
    /// Number of requests answered at the same time, each with its own context. One pass computes
    /// the tokens of all of them
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = ServerOptions::PARALLEL, value_parser = slots)]
    parallel: usize,
    /// Number of requests that may wait; further requests are refused with status 429
    #[arg(long, value_name = "N", default_value_t = ServerOptions::MAX_WAITING)]
    queue: usize,
    /// Refuse requests that OpenAI's server refuses: names of other models, and fields of other
    /// servers
    #[arg(long)]
    strict: bool,
    /// With a folder: seconds without requests after which the model is closed [default: the model
    /// stays loaded until a request names another model]
    #[arg(long, value_name = "SECONDS")]
    idle_unload: Option<u64>,
    /// How a text's hidden states are pooled into its embedding, if the request does not set it
    /// [default: as the model asks, or else mean]
    #[arg(long, value_name = "HOW", value_parser = by_name(Pooling::NAMED))]
    pooling: Option<Pooling>,
    /// Seconds that the current answer may continue after the server is asked to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// Print no statistics on standard error
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    how: AnswerOptions,
}

/// Parses a number of slots.
fn slots(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=256).contains(n));
    n.ok_or_else(|| "expected a number from 1 to 256".to_owned())
}

/// Runs the command.
pub fn serve(args: &ServeArgs) -> Outcome {
    let options = args.options()?;
    let given = &args.how.model;
    let model = ModelOptions { model: args.file.clone().or(given.model.clone()), ..given.clone() };
    let mut how = AnswerOptions { model, ..args.how.clone() };
    how.context.conversations = Some(options.parallel);
    let log = ServerLog::start(args.quiet);
    let folder = how.model.model.clone().filter(|path| is_folder_of_models(path));
    let CommandModels { models, named, engine } = match folder {
        Some(folder) => of_folder(args, folder, how, options.max_waiting, &log)?,
        None => only_model(args, &how, &log)?,
    };
    let (watch, termination) = (InterruptWatch::start(), TerminationWatch::start());
    let events = log.clone();
    let server = Server::start(options, models, move |event| events.event(&event)).map_err(Failure::usage)?;
    // Programs wait for the address, so all earlier lines are written before it.
    log.flush();
    answer::print(&format!("{named} at {}\n", server.url()))?;
    let drain = Duration::from_secs(args.drain);
    let ended = wait(&server, engine.as_ref(), &watch, &termination, drain, &log);
    log.flush();
    ended
}

/// The models that the command line asks for.
struct CommandModels {
    models: ServedModels,
    /// Name of the model, or the number of models, in one line.
    named: String,
    /// Engine of a single model. The server ends if this engine stops.
    engine: Option<Engine>,
}

/// Opens the only model, which stays open.
fn only_model(args: &ServeArgs, how: &AnswerOptions, log: &ServerLog) -> Outcome<CommandModels> {
    if args.idle_unload.is_some() {
        return Err(Failure::usage("--idle-unload: expected a folder of models, got one model, which stays loaded"));
    }
    let name = how.model.model.clone().map_or(ModelId::Builtin, ModelId::Path).to_string();
    let model = open(how, &args.alias.clone().unwrap_or(name))?;
    log.line(SlotMemory::of(&model.engine, args.parallel));
    let (named, engine) = (one_line(&model.name), Some(model.engine.clone()));
    let source = Arc::new(move || match model.engine.stopped() {
        Some(error) => Err(without_folder(&error)),
        None => Ok(model.clone()),
    });
    Ok(CommandModels { models: ServedModels::Open(source), named, engine })
}

/// Opens a model under the name `name`, with the options of `how`.
fn open(how: &AnswerOptions, name: &str) -> Outcome<ServedModel> {
    let engine = how.open()?;
    let defaults = how.request(Prompt::Tokens(Vec::new()));
    defaults.sampling.validate(engine.config().n_vocab)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(ServedModel { name: name.to_owned(), since, engine, defaults })
}

/// True for a folder that is not a model itself.
fn is_folder_of_models(path: &Path) -> bool {
    path.is_dir() && !path.join("config.json").is_file()
}

/// Serves the models of a folder.
fn of_folder(
    args: &ServeArgs,
    folder: PathBuf,
    how: AnswerOptions,
    max_waiting: usize,
    log: &ServerLog,
) -> Outcome<CommandModels> {
    if how.companions.draft.is_some() {
        return Err(Failure::usage(
            "--draft: expected one model, whose tokens the draft model has, got a folder of models",
        ));
    }
    if how.companions.mmproj.is_some() {
        return Err(Failure::usage("--mmproj: expected one model, whose vision tower it is, got a folder of models"));
    }
    let (opened, parallel) = (log.clone(), args.parallel);
    let open: OpenModel = Box::new(move |path, name| {
        let model = ModelOptions { model: Some(path.to_owned()), ..how.model.clone() };
        let model = open(&AnswerOptions { model, ..how.clone() }, name)
            .map_err(|failure| failure.message().unwrap_or_else(|| "it was interrupted".to_owned()))?;
        opened.line(SlotMemory::of(&model.engine, parallel));
        Ok(model)
    });
    let idle = args.idle_unload.map(Duration::from_secs);
    let library = ModelLibrary::new(folder.clone(), open, idle, max_waiting);
    let (models, folder) = (library.entries().len(), folder.display().to_string());
    if models == 0 {
        let message = format!("{folder}: expected a model, or a folder of models, got a folder without models");
        return Err(Failure::usage(message));
    }
    let named = format!("{} of {}", units::counted(models, "model"), one_line(&folder));
    Ok(CommandModels { models: ServedModels::Library(library), named, engine: None })
}

/// Waits for Ctrl-C or SIGTERM. Then waits up to `drain` for the current answer to end.
fn wait(
    server: &Server,
    engine: Option<&Engine>,
    watch: &InterruptWatch,
    termination: &TerminationWatch,
    drain: Duration,
    log: &ServerLog,
) -> Outcome {
    let mut told = false;
    while !watch.pressed() && !termination.requested() {
        match engine.and_then(Engine::stopped) {
            None => {}
            // The server keeps running and refuses every request with this reason.
            Some(error @ Error::FileLost { .. }) if !told => {
                log.error(&error_message(&error));
                told = true;
            }
            Some(Error::FileLost { .. }) => {}
            Some(error) => return Err(Failure::Engine(error)),
        }
        if server.is_finished() {
            return Err(Failure::Engine(Error::Stopped("the server has ended".to_owned())));
        }
        thread::sleep(POLL);
    }
    if server.status().answering {
        log.line(format_args!(
            "[the server ends after the current answer, within {} s; Ctrl-C ends it now]",
            drain.as_secs()
        ));
    }
    server.shut_down();
    let asked = Instant::now();
    while !server.is_finished() && asked.elapsed() < drain {
        thread::sleep(POLL);
    }
    Ok(())
}

impl ServeArgs {
    /// Returns the key from the command line, the key file or the environment.
    fn key(&self) -> Outcome<Option<String>> {
        if let Some(path) = &self.api_key_file {
            let text = fs::read_to_string(path).map_err(|error| Failure::read(path, error))?;
            let key = text.lines().next().unwrap_or_default().trim();
            if key.is_empty() {
                return Err(Failure::usage(format!("--api-key-file {}: its first line is empty", path.display())));
            }
            return Ok(Some(key.to_owned()));
        }
        let environment = || env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        Ok(self.api_key.clone().or_else(environment))
    }

    fn options(&self) -> Outcome<ServerOptions> {
        let found = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let unknown = |error| Failure::usage(format!("--host {}: no such address: {error}", self.host));
        let addresses: Vec<_> = found.map_err(unknown)?.collect();
        let Some(&first) = addresses.first() else {
            return Err(Failure::usage(format!("--host {}: no such address", self.host)));
        };
        let key = self.key()?;
        if key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
            let host = &self.host;
            let message = format!(
                "--host {host} lets other computers send requests, but the server has no key to keep strangers out"
            );
            let hint = Some(
                "set a key with --api-key KEY, --api-key-file FILE, or THERMOCLINE_API_KEY in the environment"
                    .to_owned(),
            );
            return Err(Failure::Usage { message, hint });
        }
        let mut options = ServerOptions::at(first);
        options.hosts.extend(self.allow_host.iter().chain([&self.host]).cloned());
        Ok(ServerOptions {
            addresses,
            key,
            strict: self.strict,
            pooling: self.pooling,
            image_urls: self.allow_image_urls.unwrap_or_default(),
            origins: self.allow_origin.clone(),
            parallel: self.parallel,
            max_waiting: self.queue,
            ..options
        })
    }
}
