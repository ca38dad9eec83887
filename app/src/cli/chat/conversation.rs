//! The messages of a terminal chat, and the session or server that answers them.

use std::{fs::File, io, path::Path};

use thermocline_engine::{
    pictures::Picture,
    session::{
        DeviceMemory, DeviceStatus, Engine, GenerationStats, LoadStage, Message, Prompt, Role, Sampling, Session,
        SessionOptions, SparsityChoice, StopReason,
    },
};

use super::{
    remote::RemoteChat,
    saved::{self, LoadedConversation},
};
use crate::cli::attach::AttachedFiles;
use thermocline_chats::attachment::Document;
use thermocline_host::units;
use thermocline_terminal::{
    answer::{self, answer},
    failure::{Failure, Outcome, one_line},
    generation_options::LengthOptions,
    standard_error::say,
};

/// The answering side of a chat.
pub enum Partner {
    /// A session of a local engine. Its KV cache keeps earlier tokens, so a turn computes only the
    /// new ones.
    Engine {
        /// The session.
        session: Box<Session>,
        /// Sampling options of answers.
        sampling: Box<Sampling>,
        /// Length options of answers.
        length: LengthOptions,
    },
    /// A model on a server.
    Server(RemoteChat),
}

impl Partner {
    /// Opens a session of `engine`.
    pub fn engine(engine: &Engine, sampling: Sampling, length: LengthOptions) -> Outcome<Self> {
        let session = Box::new(engine.session(SessionOptions::default())?);
        Ok(Partner::Engine { session, sampling: Box::new(sampling), length })
    }
}

/// A chat with one model.
pub struct TerminalConversation {
    partner: Partner,
    system: Option<String>,
    messages: Vec<Message>,
    last: Option<(GenerationStats, StopReason)>,
    regenerations: u64,
    /// The files attached to messages.
    files: Option<AttachedFiles>,
    /// The pictures of the next message.
    pictures: Vec<Picture>,
    /// The line that names the sources of the last answer.
    sources: Option<String>,
}

impl TerminalConversation {
    /// Creates an empty conversation.
    pub fn new(partner: Partner, system: Option<String>) -> Self {
        TerminalConversation {
            partner,
            system: system.filter(|text| !text.is_empty()),
            messages: Vec::new(),
            last: None,
            regenerations: 0,
            files: None,
            pictures: Vec::new(),
            sources: None,
        }
    }

    /// Attaches a file to the next message.
    pub fn attach(&mut self, document: &Document) -> Outcome {
        if self.files.is_none() {
            self.files = Some(AttachedFiles::new(&self.transcript())?);
        }
        self.files.as_mut().map_or(Ok(()), |files| files.attach(document))
    }

    /// Puts a picture into the next message. Returns the number of its tokens, if the model is
    /// local.
    pub fn add_picture(&mut self, picture: Picture) -> Outcome<Option<usize>> {
        let tokens = match &self.partner {
            Partner::Engine { session, .. } => Some(session.engine().picture_tokens(&picture)?),
            Partner::Server(_) => None,
        };
        self.pictures.push(picture);
        Ok(tokens)
    }

    /// Describes the answering model for the greeting.
    pub fn partner(&self) -> String {
        match &self.partner {
            Partner::Engine { session, .. } => {
                let (config, engine) = (&session.engine().model().config, session.engine());
                let size = units::bytes(engine.model().checkpoint.tensor_bytes());
                format!("{} ({size}, context {})", config.name, engine.context())
            }
            Partner::Server(server) => format!("{}\n{}.", server.name(), server.destination()),
        }
    }

    /// Returns the engine. Commands that need it fail for a server's model.
    fn engine(&self) -> Outcome<&Engine> {
        match &self.partner {
            Partner::Engine { session, .. } => Ok(session.engine()),
            Partner::Server(server) => Err(Failure::usage(format!("the server decides this: {}", server.name()))),
        }
    }

    /// Adds the user's message and generates the answer. If this fails, removes the message again.
    pub fn send(&mut self, text: String) -> Outcome {
        // `//` at the start escapes a slash.
        let text = if text.starts_with("//") { text[1..].to_owned() } else { text };
        let engine = self.engine().ok().cloned();
        let (mut message, sources) = match &mut self.files {
            Some(files) => files.add_message(&text, engine.as_ref())?,
            None => (Message::new(Role::User, text), None),
        };
        self.sources = sources;
        message.pictures.append(&mut self.pictures);
        self.messages.push(message);
        self.regenerations = 0;
        let answered = self.answer();
        if answered.is_err() {
            self.pictures = self.messages.pop().map(|message| message.pictures).unwrap_or_default();
        }
        answered
    }

    /// Generates the last answer again, with a different seed.
    pub fn regenerate(&mut self) -> Outcome {
        if self.messages.last().is_some_and(|message| message.role == Role::Assistant) {
            let previous = self.messages.pop();
            self.regenerations += 1;
            let answered = self.answer();
            if answered.is_err() {
                self.messages.extend(previous);
            }
            return answered;
        }
        Err(Failure::usage("there is no answer yet"))
    }

    fn answer(&mut self) -> Outcome {
        let (turns, regenerations) = (self.transcript(), self.regenerations);
        let answered = match &mut self.partner {
            Partner::Engine { session, sampling, length } => {
                let mut sampling = (**sampling).clone();
                // With the same seed, the answer would be the same.
                sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(regenerations));
                let request = length.request(Prompt::Chat(turns), sampling);
                answer(session, request, None, &mut |_, piece| answer::print(piece))?
            }
            Partner::Server(server) => server.answer(&turns, regenerations)?,
        };
        if !answered.text.ends_with('\n') {
            answer::print("\n")?;
        }
        if let Some(sources) = &self.sources {
            say(sources);
        }
        if let Some(forgotten) = answer::forgotten_line(&answered.stats) {
            say(forgotten);
        }
        if super::shows_figures() {
            say(answer::stats_line(&answered.stats, &answered.reason));
        }
        if let Some(files) = &mut self.files {
            files.answered(&answered.text)?;
        }
        self.messages.push(Message::new(Role::Assistant, answered.text));
        self.last = Some((answered.stats, answered.reason));
        Ok(())
    }

    fn transcript(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new(Role::System, text));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Removes all messages but the system prompt.
    pub fn reset(&mut self) {
        self.messages.clear();
        (self.files, self.sources) = (None, None);
        self.pictures.clear();
        self.last = None;
        self.regenerations = 0;
    }

    /// Sets the system prompt from the next turn on; empty for none.
    pub fn set_system(&mut self, text: String) {
        self.system = Some(text).filter(|text| !text.is_empty());
    }

    /// Formats the statistics of the last answer in one line.
    pub fn stats(&self) -> String {
        match &self.last {
            Some((stats, reason)) => answer::stats_line(stats, reason) + "\n",
            None => "(no answer yet)\n".to_owned(),
        }
    }

    /// Describes the device that computes the model in one line.
    pub fn device(&self) -> Outcome<String> {
        let text = match self.engine()?.device() {
            DeviceStatus::Cpu { reason: None } => "CPU".to_owned(),
            DeviceStatus::Cpu { reason: Some(reason) } => format!("CPU: {reason}"),
            DeviceStatus::Loading(LoadStage::Testing) => "CPU; testing the GPU's driver".to_owned(),
            DeviceStatus::Loading(stage) => {
                let (done, total) = stage.bytes();
                format!("CPU; loading {} of {} into the GPU", units::bytes(done), units::bytes(total))
            }
            DeviceStatus::Gpu(memory) => memory_line(&memory),
            DeviceStatus::Lost { adapter, reason } => {
                format!("CPU; GPU {adapter} is lost and will be tried again: {reason}")
            }
        };
        Ok(one_line(&text) + "\n")
    }

    /// Tries a lost GPU again.
    pub fn retry_device(&self) -> Outcome {
        Ok(self.engine()?.retry_device()?)
    }

    /// Sets the sparsity mode from the next token on, if `choice` is given. Returns the current
    /// mode.
    pub fn sparsity(&self, choice: Option<SparsityChoice>) -> Outcome<String> {
        let engine = self.engine()?;
        let now = match choice {
            Some(choice) => {
                engine.set_sparsity(choice)?;
                engine.sparsity_of(choice)
            }
            None => engine.sparsity(),
        };
        Ok(format!("{now}\n"))
    }

    /// Sets the VRAM budget from the next token on, if `bytes` is given. Returns the current
    /// budget.
    pub fn vram(&self, bytes: Option<u64>) -> Outcome<String> {
        let engine = self.engine()?;
        if let Some(bytes) = bytes {
            engine.set_vram_budget(bytes)?;
        }
        let card = match engine.device() {
            DeviceStatus::Gpu(memory) => memory.card,
            _ => None,
        };
        Ok(match (engine.vram_budget(), card) {
            (Some(bytes), Some(card)) if bytes > card => {
                format!("at most {}, which is all of the GPU's memory\n", units::bytes(card))
            }
            (Some(bytes), _) => format!("at most {} of GPU memory\n", units::bytes(bytes)),
            (None, _) => "all free GPU memory\n".to_owned(),
        })
    }

    /// Turns adaptive placement on or off, if `on` is given. Returns the current setting.
    pub fn adaptive(&self, on: Option<bool>) -> Outcome<String> {
        let engine = self.engine()?;
        if let Some(on) = on {
            engine.set_adaptive(on)?;
        }
        let text = if engine.adaptive() {
            "neurons that fire often move into GPU memory"
        } else {
            "the neurons in GPU memory stay the same"
        };
        Ok(format!("{text}\n"))
    }

    /// Writes the conversation to `path`, which must not exist.
    pub fn save(&self, path: &Path) -> Outcome {
        let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let turns = self.transcript();
        let text = if json { saved::json(&turns)? } else { saved::markdown(&turns) };
        let write = || io::Write::write_all(&mut File::create_new(path)?, text.as_bytes());
        write().map_err(|error| Failure::write(path, error))
    }

    /// Goes on with the conversation in `path`. Returns the number of its messages.
    pub fn load(&mut self, path: &Path) -> Outcome<usize> {
        let LoadedConversation { system, messages, files } = LoadedConversation::open(path, self.engine().ok())?;
        self.reset();
        self.set_system(system);
        (self.messages, self.files) = (messages, Some(files));
        Ok(self.messages.len())
    }
}

/// Formats a line like `GPU X: 1.2 GiB of 6.0 GiB (attention weights 300.0 MiB, ..)`.
fn memory_line(memory: &DeviceMemory) -> String {
    let of = memory.budget.map_or(String::new(), |budget| format!(" of {}", units::bytes(budget)));
    let used = memory.by_purpose.iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = used.map(|(what, bytes)| format!("{} {}", what.name(), units::bytes(*bytes))).collect();
    format!("GPU {}: {}{of} ({})", memory.adapter, units::bytes(memory.accounted), parts.join(", "))
}
