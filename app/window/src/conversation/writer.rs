//! The model that wrote an answer. Only its own neurons can explain the words.

use thermocline_chats::store::StoredMessage;
use thermocline_host::{answer_stats::AnswerStats, engine_handle::ModelState, library::ModelId};

/// Why the open model cannot say which neurons made the answer's words. `None` if it can.
pub fn obstacle(answer: &StoredMessage, state: &ModelState) -> Option<String> {
    if answer.edited {
        return Some("You changed this answer, so its words are not the model's.".to_owned());
    }
    let key = AnswerStats::from_json(answer.stats.as_deref()).and_then(|stats| stats.writer);
    if let Some(ModelId::Remote(model)) = key.as_deref().map(ModelId::from_key) {
        return Some(format!("{} computed this answer, so its neurons cannot be shown here.", model.server.host()));
    }
    let Some(name) = &answer.model else {
        return Some("The model that wrote this answer is unknown.".to_owned());
    };
    let wrote = |model: &ModelId| *name == model.to_string() && key.as_ref().is_none_or(|key| *key == model.key());
    match state {
        ModelState::Ready { model, engine } if wrote(model) => {
            engine.stopped().map(|_| format!("{name} has stopped. Reopen it to see which neurons made these words."))
        }
        ModelState::Ready { .. } | ModelState::Remote { .. } => {
            Some(format!("{name} wrote this answer. Open it to see which neurons made the words."))
        }
        ModelState::Opening(_) | ModelState::Empty | ModelState::Failed { .. } => {
            Some(format!("Open {name}, which wrote this answer, to see which neurons made the words."))
        }
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Engine, EngineOptions};

    use super::*;
    use thermocline_chats::store::{NewMessage, Store};
    use thermocline_host::remote::{RemoteClient, RemoteModel, RemoteTimeouts};

    fn answer(model: Option<&str>, writer: Option<&str>) -> StoredMessage {
        let (mut store, chat) = Store::with_chat();
        let id = store.add_message(chat, None, &NewMessage::assistant("A"));
        let stats = AnswerStats { writer: writer.map(str::to_owned), ..AnswerStats::default() };
        let message = store.message(id.unwrap()).unwrap();
        StoredMessage { model: model.map(str::to_owned), stats: serde_json::to_string(&stats).ok(), ..message }
    }

    #[test]
    fn answer_is_explained_by_the_model_that_wrote_it_alone() {
        let model = ModelId::Builtin.open(&Default::default()).unwrap();
        let engine = Engine::from_model(model, EngineOptions::default()).unwrap();
        let remote =
            RemoteModel { server: "http://127.0.0.1:8098/v1".parse().unwrap(), name: "Storyteller".to_owned() };
        let client = RemoteClient::new(remote.server.clone(), None, RemoteTimeouts::default());
        let open = ModelState::Ready { model: ModelId::Builtin, engine };
        let server = ModelState::Remote { model: remote.clone(), client };
        let key = ModelId::Builtin.key();
        let own = answer(Some("Storyteller"), Some(&key));
        assert_eq!(obstacle(&own, &open), None);
        assert_eq!(obstacle(&answer(Some("Storyteller"), None), &open), None, "of an earlier version");
        let says = |answer: &StoredMessage, state: &ModelState, why: &str| {
            let obstacle = obstacle(answer, state).unwrap_or_default();
            assert!(obstacle.contains(why), "{obstacle:?} has no {why:?}");
        };
        says(&own, &server, "Storyteller wrote this answer");
        says(&own, &ModelState::Empty, "Open Storyteller");
        says(&answer(Some("Storyteller"), Some("/models/Storyteller.gguf")), &open, "Storyteller wrote this answer");
        says(&answer(Some("Other"), Some(&key)), &open, "Other wrote this answer");
        says(&answer(Some("Storyteller"), Some(&remote.key())), &open, "127.0.0.1:8098 computed this answer");
        says(&answer(Some("Storyteller"), Some(&remote.key())), &server, "cannot be shown");
        says(&answer(None, None), &open, "wrote this answer is unknown");
        says(&StoredMessage { edited: true, ..own }, &open, "You changed this answer");
    }
}
