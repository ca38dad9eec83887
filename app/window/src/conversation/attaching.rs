//! Files for a message: chosen in a dialog, dropped or pasted, read and counted on a background
//! thread, and stored with the chat.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::Arc,
};

use egui::{ColorImage, Context, Event, Ui};
use thermocline_engine::{pictures::Picture, session::Engine};

use super::thumbnails;

use crate::{
    file_dialog::{self, DialogAnswer},
    path_field::{PathField, Typed},
};
use thermocline_chats::{
    attachment::{AttachmentError, AttachmentFault, Document},
    chat::given,
    store::{Attachment, AttachmentId, ChatId, MessageId, PassageRanking, Source, Store, StoreError},
};
use thermocline_rich_text::background::Background;
/// Tokens of a file, with the key of the model whose tokenizer counted them.
type CountedTokens = (AttachmentId, String, usize);

/// The place of a file's contents.
#[derive(Debug, Clone)]
enum FileSource {
    /// A file on disk.
    Path(PathBuf),
    /// A pasted picture.
    Pasted(Arc<ColorImage>),
}

/// The name of pasted pictures.
const PASTED: &str = "pasted picture.png";

impl FileSource {
    fn name(&self) -> String {
        let FileSource::Path(path) = self else { return PASTED.to_owned() };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.display().to_string())
    }

    fn read(&self) -> Result<Document, AttachmentError> {
        match self {
            FileSource::Path(path) => Document::open(path),
            FileSource::Pasted(image) => {
                thumbnails::pasted(image).map(|picture| Document::of_picture(PASTED.to_owned(), picture)).map_err(
                    |error| AttachmentError { name: PASTED.to_owned(), fault: AttachmentFault::Picture(error.into()) },
                )
            }
        }
    }
}

/// A file that has not been read yet.
#[derive(Debug)]
struct UnreadFile {
    source: FileSource,
    /// The chat that the file is for. `None` means the shown chat.
    chat: Option<ChatId>,
}

impl UnreadFile {
    fn name(&self) -> String {
        self.source.name()
    }
}

/// A file that was read, or the reason why reading it failed.
#[derive(Debug)]
pub struct AttachedFile {
    /// The file's text, or the error.
    pub document: Result<Document, String>,
    /// The chat that the file is for. `None` means the shown chat.
    pub chat: Option<ChatId>,
}

/// The files of the shown chat, and the files that are still being read for it.
#[derive(Debug, Default)]
pub struct Attaching {
    dialog: Background<DialogAnswer<Vec<PathBuf>>>,
    typed: Option<PathField<()>>,
    waiting: VecDeque<UnreadFile>,
    /// The file that is being read.
    reading: Option<UnreadFile>,
    read: Background<Result<Document, AttachmentError>>,
    counting: Background<CountedTokens>,
    files: Vec<Attachment>,
    sources: HashMap<MessageId, Vec<Source>>,
    rankings: HashMap<MessageId, PassageRanking>,
}

impl Attaching {
    /// Opens the system's file dialog.
    ///
    /// # Errors
    /// A sentence if no thread can start.
    pub fn choose(&mut self, ctx: &Context) -> Result<(), String> {
        if self.dialog.is_busy() || self.typed.is_some() {
            return Ok(());
        }
        self.dialog.start(ctx, || file_dialog::ask(|dialog| dialog.set_title("Attach files").pick_files()))
    }

    /// Shows the path field on desktops without a file dialog.
    pub fn show(&mut self, ui: &Ui) {
        if let Some(typed) = self.typed.as_mut().and_then(|field| field.show(ui)) {
            self.typed = None;
            if let Typed::Path(path) = typed {
                self.add(path);
                ui.request_repaint();
            }
        }
    }

    /// Adds a chosen or dropped file. A background thread reads it.
    pub fn add(&mut self, path: PathBuf) {
        self.waiting.push_back(UnreadFile { source: FileSource::Path(path), chat: None });
    }

    /// Adds the pictures that were pasted since the previous frame.
    pub fn add_pasted(&mut self, ui: &Ui) {
        ui.input(|input| {
            let pasted = input.events.iter().filter_map(|event| match event {
                Event::PasteImage(image) => Some(Arc::clone(image)),
                _ => None,
            });
            let unread = |image| UnreadFile { source: FileSource::Pasted(image), chat: None };
            self.waiting.extend(pasted.map(unread));
        });
    }

    /// True while files for the shown chat are being read.
    pub fn is_reading(&self) -> bool {
        self.unread().next().is_some()
    }

    /// Names of the shown chat's files that are being read or wait to be read.
    pub fn unread(&self) -> impl Iterator<Item = String> {
        let all = self.reading.iter().chain(&self.waiting);
        all.filter(|file| file.chat.is_none()).map(UnreadFile::name)
    }

    /// Names of all chats' files that are being read or wait to be read.
    pub fn all_unread(&self) -> Vec<String> {
        self.reading.iter().chain(&self.waiting).map(UnreadFile::name).collect()
    }

    /// Forgets the unread files of the shown chat.
    pub fn forget_unread(&mut self) {
        self.waiting.retain(|file| file.chat.is_some());
        if self.reading.take_if(|file| file.chat.is_none()).is_some() {
            self.read = Background::default();
        }
    }

    /// Moves the unread files of chat `from` to chat `to`. `None` means the shown chat.
    pub fn redirect(&mut self, from: Option<ChatId>, to: Option<ChatId>) {
        let own = self.reading.iter_mut().chain(&mut self.waiting).filter(|file| file.chat == from);
        own.for_each(|file| file.chat = to);
    }

    /// Returns a file that was read since the last call, or the error. Also starts to read the next
    /// file.
    pub fn take(&mut self, ctx: &Context) -> Option<AttachedFile> {
        match self.dialog.take() {
            Some(DialogAnswer::Chosen(paths)) => paths.into_iter().for_each(|path| self.add(path)),
            Some(DialogAnswer::NoDialog) => self.typed = Some(PathField::new("Attach a file", "", ())),
            Some(DialogAnswer::Closed) | None => {}
        }
        if self.reading.is_some() {
            let read = self.read.take();
            if read.is_none() && self.read.is_busy() {
                return None;
            }
            let file = self.reading.take()?;
            let broke = || Err(format!("{} could not be read", file.name()));
            let document = read.map_or_else(broke, |read| read.map_err(|error| error.to_string()));
            return Some(AttachedFile { document, chat: file.chat });
        }
        let file = self.waiting.pop_front()?;
        let source = file.source.clone();
        match self.read.start(ctx, move || source.read()) {
            Ok(()) => {
                self.reading = Some(file);
                None
            }
            Err(why) => Some(AttachedFile { document: Err(why), chat: file.chat }),
        }
    }

    /// Sets the files of a chat, and for each answer the files and passages that the model was
    /// given, and how the passages were ranked.
    pub fn set(
        &mut self,
        files: Vec<Attachment>,
        sources: HashMap<MessageId, Vec<Source>>,
        rankings: HashMap<MessageId, PassageRanking>,
    ) {
        (self.files, self.sources, self.rankings) = (files, sources, rankings);
    }

    /// The files of the draft.
    pub fn draft(&self) -> impl Iterator<Item = &Attachment> {
        self.files.iter().filter(|file| file.message.is_none())
    }

    /// The files of the shown chat.
    pub fn shown(&self) -> impl Iterator<Item = &Attachment> {
        self.files.iter()
    }

    /// The files of a message.
    pub fn of(&self, message: MessageId) -> Vec<&Attachment> {
        self.files.iter().filter(|file| file.message == Some(message)).collect()
    }

    /// Files and passages that the model was given for a message.
    pub fn sources(&self, message: MessageId) -> &[Source] {
        self.sources.get(&message).map_or(&[], Vec::as_slice)
    }

    /// How the passages that the model was given for a message were ranked.
    pub fn ranking(&self, message: MessageId) -> Option<&PassageRanking> {
        self.rankings.get(&message)
    }

    /// A fingerprint of what the model is given with all messages. It changes if that changes.
    pub fn given(&self) -> (usize, usize, usize) {
        let whole = self.files.iter().filter(|file| file.whole == Some(true)).count();
        (self.files.len(), whole, self.sources.values().map(Vec::len).sum())
    }

    /// Counts the tokens of the draft's files, one after the other, with the model of this key.
    /// True if a file was counted since the last call.
    ///
    /// # Errors
    /// The store's error.
    pub fn count(&mut self, ctx: &Context, store: &mut Store, engine: &Engine, key: &str) -> Result<bool, StoreError> {
        let mut counted = false;
        if let Some((id, model, tokens)) = self.counting.take() {
            counted = true;
            // The file may have been removed meanwhile.
            store.set_attachment_tokens(id, &model, tokens)?;
            for file in self.files.iter_mut().filter(|file| file.id == id) {
                file.tokens = Some((tokens, model.clone()));
            }
        }
        let sees_pictures = engine.tower().is_some();
        let next = self.draft().find(|file| !is_counted(file, key, sees_pictures));
        let Some(id) = next.filter(|_| !self.counting.is_busy()).map(|file| file.id) else { return Ok(counted) };
        let text: String = store.attached(id)?.into_iter().map(|passage| passage.text).collect();
        let pictures = if sees_pictures { store.picture_files(id)? } else { Vec::new() };
        let (engine, key) = (engine.clone(), key.to_owned());
        // If no thread can start, no tokens are counted before the message is sent.
        let _ = self.counting.start(ctx, move || {
            let of_picture =
                |file: &Vec<u8>| Picture::deferred(file).and_then(|picture| engine.picture_tokens(&picture));
            let pictures: Result<Vec<usize>, _> = pictures.iter().map(of_picture).collect();
            // The model does not take the picture, so the message has no file for it.
            let tokens = pictures
                .map_or(given::UNSEEN, |tokens| tokens.into_iter().sum::<usize>() + given::tokens(&engine, &text));
            (id, key, tokens)
        });
        Ok(counted)
    }
}

/// True if the tokens of `file` need not be counted for the model of this key: they are known, or
/// the model cannot see the file's pictures.
pub fn is_counted(file: &Attachment, key: &str, sees_pictures: bool) -> bool {
    file.tokens_for(key).is_some() || (file.is_picture() && !sees_pictures)
}
