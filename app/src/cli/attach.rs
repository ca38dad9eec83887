//! `--attach FILE`: attaches files to a message in the terminal, as the window does.

use std::path::{Path, PathBuf};

use clap::Args;
use thermocline_engine::session::{Engine, Message, Role};

use thermocline_chats::{
    attachment::Document,
    chat::given::{self, Measure, MessageContent, sources_line},
    store::{ChatId, MessageId, MessageState, NewMessage, Speaker, Store, StoreError, StoredMessage},
};
use thermocline_terminal::failure::{Failure, Outcome};

/// The files of the first message.
#[derive(Debug, Clone, Default, Args)]
pub struct AttachOptions {
    /// File to attach to the message: a picture, text, code, Markdown, PDF or docx; may be
    /// repeated. If the context has room for it, the prompt contains the whole file. Otherwise, it
    /// contains the passages that match the message best
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
}

impl AttachOptions {
    /// Reads the files.
    pub fn open(&self) -> Outcome<Vec<Document>> {
        self.attach.iter().map(|path| open(path)).collect()
    }
}

/// Reads a file.
pub fn open(path: &Path) -> Outcome<Document> {
    Document::open(path).map_err(|error| Failure::usage(error.to_string()))
}

/// The files and messages of a conversation, which determine what the model reads.
#[derive(Debug)]
pub struct AttachedFiles {
    store: Store,
    chat: ChatId,
    last: Option<MessageId>,
    system: String,
}

fn failed(error: StoreError) -> Failure {
    Failure::Output(error.to_string())
}

impl AttachedFiles {
    /// Begins with the messages of a conversation so far.
    pub fn new(turns: &[Message]) -> Outcome<Self> {
        let mut store = Store::in_memory().map_err(failed)?;
        let chat = store.add_chat(None, "").map_err(failed)?;
        let mut files = AttachedFiles { store, chat, last: None, system: String::new() };
        for turn in turns {
            match turn.role {
                Role::System => files.system.clone_from(&turn.content),
                Role::User => files.add(&NewMessage::user(&turn.content))?,
                Role::Assistant | Role::Tool => files.answered(&turn.content)?,
            }
        }
        Ok(files)
    }

    /// Goes on with a stored chat. Also returns its messages, and what the model reads of them.
    pub fn of_chat(
        store: Store,
        chat: ChatId,
        engine: Option<&Engine>,
    ) -> Outcome<(Self, Vec<StoredMessage>, Vec<MessageContent>)> {
        let system = store.chat(chat).map_err(failed)?.system_prompt;
        let branch = store.branch(chat).map_err(failed)?;
        let mut files = AttachedFiles { store, chat, last: branch.last().map(|message| message.id), system };
        let contents = files.contents(&branch, engine).map_err(failed)?;
        Ok((files, branch, contents))
    }

    fn add(&mut self, message: &NewMessage) -> Outcome {
        self.last = Some(self.store.add_message(self.chat, self.last, message).map_err(failed)?);
        Ok(())
    }

    /// Attaches a file to the next message.
    pub fn attach(&mut self, document: &Document) -> Outcome {
        self.store.attach(self.chat, document).map(drop).map_err(failed)
    }

    /// Adds the user's message. Returns the message for the model, and a line that names its
    /// sources, if any.
    pub fn add_message(&mut self, text: &str, engine: Option<&Engine>) -> Outcome<(Message, Option<String>)> {
        self.add(&NewMessage::user(text))?;
        let Some(message) = self.last else { return Ok((Message::new(Role::User, text), None)) };
        let said = self.decide(message, engine).map_err(failed)?;
        let sources = self.store.sources(self.chat).map_err(failed)?;
        let line = sources.get(&message).filter(|sources| !sources.is_empty()).map(|sources| sources_line(sources));
        Ok((said, line))
    }

    fn decide(&mut self, message: MessageId, engine: Option<&Engine>) -> Result<Message, StoreError> {
        self.store.send_attachments(self.chat, message)?;
        let branch = self.store.branch(self.chat)?;
        let last = self.contents(&branch, engine)?.pop().unwrap_or_default();
        Ok(Message { pictures: last.pictures, ..Message::new(Role::User, last.text) })
    }

    /// The parts of the messages of `branch` that the model reads.
    fn contents(
        &mut self,
        branch: &[StoredMessage],
        engine: Option<&Engine>,
    ) -> Result<Vec<MessageContent>, StoreError> {
        let path: Vec<&StoredMessage> = branch.iter().collect();
        let measure = match engine {
            Some(engine) => Measure::engine(engine, "", &[]),
            None => Measure::server(),
        };
        given::decide(&mut self.store, self.chat, &path, &self.system, &measure)?;
        given::contents(&self.store, self.chat, &path, measure.sees_pictures())
    }

    /// Adds the model's answer to the conversation.
    pub fn answered(&mut self, text: &str) -> Outcome {
        let content = text.to_owned();
        self.add(&NewMessage { speaker: Speaker::Assistant, content, state: MessageState::Complete, model: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_chats::attachment::{DocumentKind, fixtures::haystack};

    #[test]
    fn files_go_with_the_next_message_and_long_ones_with_later_ones() {
        let mut files =
            AttachedFiles::new(&[Message::new(Role::System, "Be brief."), Message::new(Role::User, "Hi")]).unwrap();
        let document =
            |name: &str, text: &str| Document::read(name.to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
        files.attach(&document("short.txt", "few words\n")).unwrap();
        let (said, sources) = files.add_message("What is in it?", None).unwrap();
        assert_eq!(said.content, "<file name=\"short.txt\">\nfew words\n</file>\n\nWhat is in it?");
        assert_eq!(sources.as_deref(), Some("Sources: short.txt"));
        files.answered("Few words.").unwrap();
        files.attach(&document("long.txt", &haystack("The walrus sings."))).unwrap();
        files.add_message("Who sings?", None).unwrap();
        let (said, sources) = files.add_message("What does the walrus do?", None).unwrap();
        assert!(
            said.content.contains("The walrus sings.") && said.content.ends_with("What does the walrus do?"),
            "{said:?}"
        );
        assert!(sources.unwrap().starts_with("Sources: long.txt, lines "));
    }

    #[test]
    fn open_refuses_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, [0u8; 64]).unwrap();
        let failure = open(&path).unwrap_err();
        assert!(
            matches!(&failure, Failure::Usage { message, .. } if message.starts_with("a.bin is not a text file")),
            "{failure:?}"
        );
    }
}
