//! The order of the chats in the list. The arrow keys follow it.

use super::row::RowMove;
use thermocline_chats::store::{Chat, ChatId, Folder};

/// The chats from top to bottom, and the chat at which Tab stops.
#[derive(Debug, Default)]
pub struct ListOrder {
    chats: Vec<ChatId>,
    /// The last chat with the keyboard focus, while it is in the list.
    stop: Option<ChatId>,
    /// True if a row had the keyboard focus in this frame.
    pub focused: bool,
    /// True if the Tab stop should get the keyboard focus.
    pub wanted: bool,
}

impl ListOrder {
    /// Orders the chats: pinned ones, then the folders, then the others. Each group keeps the order
    /// of `chats`.
    pub fn set(&mut self, chats: &[Chat], folders: &[Folder]) {
        let ids =
            |of: &dyn Fn(&Chat) -> bool| chats.iter().filter(|chat| of(chat)).map(|chat| chat.id).collect::<Vec<_>>();
        self.chats = ids(&|chat| chat.pinned);
        for folder in folders {
            self.chats.extend(ids(&|chat| !chat.pinned && chat.folder == Some(folder.id)));
        }
        self.chats.extend(ids(&|chat| !chat.pinned && chat.folder.is_none()));
        self.stop = self.stop.filter(|stop| self.chats.contains(stop));
    }

    /// The chat at which Tab stops: the last one with the focus, the `shown` one, or the first.
    pub fn stop(&self, shown: Option<i64>) -> Option<ChatId> {
        let shown = || self.chats.iter().find(|chat| Some(chat.number()) == shown).copied();
        self.stop.or_else(shown).or_else(|| self.chats.first().copied())
    }

    /// Notes that the row of `chat` has the keyboard focus, and moves the focus to another row.
    pub fn lead(&mut self, chat: ChatId, to: RowMove) {
        self.focused = true;
        let Some(at) = self.chats.iter().position(|id| *id == chat) else { return };
        let last = self.chats.len() - 1;
        let next = match to {
            RowMove::Here => at,
            RowMove::Up => at.saturating_sub(1),
            RowMove::Down => (at + 1).min(last),
            RowMove::First => 0,
            RowMove::Last => last,
        };
        self.stop = self.chats.get(next).copied();
        self.wanted |= next != at;
    }

    /// The chat below the `shown` chat, or above it. Without a shown chat, the first chat counts as
    /// below.
    pub fn neighbour(&self, shown: Option<i64>, below: bool) -> Option<ChatId> {
        let at = self.chats.iter().position(|chat| Some(chat.number()) == shown);
        let next = match (at, below) {
            (None, true) => Some(0),
            (None, false) => None,
            (Some(at), true) => Some(at + 1),
            (Some(at), false) => at.checked_sub(1),
        };
        next.and_then(|next| self.chats.get(next).copied())
    }

    /// The chat that keys act on: the focused row's chat, otherwise the `shown` chat.
    pub fn target(&self, shown: Option<i64>) -> Option<ChatId> {
        let row = self.stop.filter(|_| self.focused);
        row.or_else(|| self.chats.iter().find(|chat| Some(chat.number()) == shown).copied())
    }

    /// Forgets the focused row, because another chat is shown.
    pub fn forget_stop(&mut self) {
        self.stop = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_chats::store::Store;

    #[test]
    fn keys_follow_the_order_of_the_list() {
        let mut store = Store::in_memory().unwrap();
        let [old, filed, pinned, new] = [(); 4].map(|()| store.add_chat(None, "").unwrap());
        let folder = store.add_folder("Folder").unwrap();
        store.move_chat(filed, Some(folder)).unwrap();
        store.pin_chat(pinned, true).unwrap();
        let mut order = ListOrder::default();
        order.set(&store.chats().unwrap(), &store.folders().unwrap());
        assert_eq!(order.chats, [pinned, filed, new, old]);

        let number = |chat: ChatId| Some(chat.number());
        assert_eq!((order.neighbour(None, true), order.neighbour(None, false)), (Some(pinned), None));
        assert_eq!(order.neighbour(number(filed), true), Some(new));
        assert_eq!(order.neighbour(number(filed), false), Some(pinned));
        assert_eq!((order.neighbour(number(old), true), order.neighbour(number(pinned), false)), (None, None));

        assert_eq!((order.stop(None), order.stop(number(new))), (Some(pinned), Some(new)));
        for (from, to, stop) in [
            (new, RowMove::Down, old),
            (old, RowMove::Down, old),
            (old, RowMove::First, pinned),
            (pinned, RowMove::Up, pinned),
            (pinned, RowMove::Last, old),
            (old, RowMove::Up, new),
        ] {
            order.lead(from, to);
            assert_eq!(order.stop(None), Some(stop), "{to:?}");
        }
        assert_eq!(order.target(number(old)), Some(new), "the row with the keyboard");
        order.focused = false;
        assert_eq!(order.target(number(old)), Some(old));
        store.delete_chat(new).unwrap();
        order.set(&store.chats().unwrap(), &store.folders().unwrap());
        assert_eq!(order.stop(number(old)), Some(old), "one that is gone is no stop");
    }
}
