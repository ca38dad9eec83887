//! The order of the library: filters and sorts the models, and groups the files of each model.

use egui::{Id, TextStyle, Ui};

use super::{estimate::Estimates, search::ModelSearch};
use crate::shell::Shell;
use thermocline_chats::download::quantization;
use thermocline_host::library::{ModelCard, ModelId};
use thermocline_rich_text::text::TextField;

/// The order of the models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelOrder {
    /// The last used model first.
    #[default]
    LastUsed,
    /// By name.
    Name,
    /// The largest first.
    Size,
    /// The best fit for this computer first.
    Fit,
}

impl ModelOrder {
    const ALL: [ModelOrder; 4] = [ModelOrder::LastUsed, ModelOrder::Name, ModelOrder::Size, ModelOrder::Fit];

    /// The order as text.
    fn words(self) -> &'static str {
        match self {
            ModelOrder::LastUsed => "Sorted by last use",
            ModelOrder::Name => "Sorted by name",
            ModelOrder::Size => "Sorted by size",
            ModelOrder::Fit => "Sorted by fit",
        }
    }
}

/// The models in the order in which they are shown.
#[derive(Debug, Default)]
pub struct ModelList {
    /// Words that a model must contain, in any order.
    filter: String,
    order: ModelOrder,
    /// Current rank of each model by fit. Empty in other orders.
    ranks: Vec<u8>,
    /// Indices into the list of cards: the files of each model.
    pub groups: Vec<Vec<usize>>,
    /// The inputs that the groups were made from.
    made_of: ShelfInputs,
}

/// All inputs of the groups.
#[derive(Debug, Default, PartialEq)]
struct ShelfInputs {
    revision: u64,
    filter: String,
    order: ModelOrder,
    ranks: Vec<u8>,
    recent: Vec<String>,
}

impl ModelList {
    /// Shows all models again.
    pub fn clear_filter(&mut self) {
        self.filter.clear();
    }

    /// True if a file with this path passes the filter.
    pub fn leaves(&self, path: &str) -> bool {
        let path = path.to_lowercase();
        self.filter.split_whitespace().all(|word| path.contains(&word.to_lowercase()))
    }

    /// Shows the controls of the filter and the order.
    pub fn controls(&mut self, ui: &mut Ui) {
        ui.horizontal_wrapped(|ui| {
            let label = ui.label("Filter").id;
            let field = TextField::line(Id::unique("filter of the library"), TextStyle::Body.resolve(ui.style()));
            let field = field.show(ui, &mut self.filter, |field| {
                field.desired_width(240.0).hint_text("Name, family, quantisation, folder")
            });
            field.labelled_by(label);
            if !self.filter.is_empty() && ui.button("Show all").clicked() {
                self.clear_filter();
            }
            ui.menu_button(self.order.words(), |ui| {
                for order in ModelOrder::ALL {
                    if ui.selectable_label(self.order == order, order.words()).clicked() {
                        self.order = order;
                        ui.close();
                    }
                }
            });
        });
    }

    /// Makes new groups if an input has changed.
    pub fn update(&mut self, search: &ModelSearch, shell: &Shell, estimates: &Estimates) {
        self.ranks.clear();
        if self.order == ModelOrder::Fit {
            self.ranks.extend(search.cards.iter().map(|card| estimates.rank(card)));
        }
        let recent = &shell.settings.recent;
        let ShelfInputs { revision, filter, order, ranks, recent: before } = &self.made_of;
        let same = *revision == search.revision && *filter == self.filter && *order == self.order;
        if same && *ranks == self.ranks && before == recent {
            return;
        }
        let (filter, ranks) = (self.filter.clone(), self.ranks.clone());
        self.made_of =
            ShelfInputs { revision: search.revision, filter, order: self.order, ranks, recent: recent.clone() };
        self.groups = self.made_of.groups(&search.cards);
    }
}

impl ShelfInputs {
    fn groups(&self, cards: &[ModelCard]) -> Vec<Vec<usize>> {
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, card) in cards.iter().enumerate().filter(|(_, card)| has(card, &words)) {
            match groups.iter_mut().find(|group| is_same_model(&cards[group[0]], card)) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        for group in &mut groups {
            group.sort_by_key(|at| cards[*at].bytes);
        }
        let bytes = |group: &Vec<usize>| group.iter().map(|at| cards[*at].bytes).max().unwrap_or(0);
        match self.order {
            ModelOrder::LastUsed => {
                let last = |at: &usize| {
                    let key = cards[*at].id.key();
                    self.recent.iter().position(|recent| *recent == key).unwrap_or(usize::MAX)
                };
                groups.sort_by_cached_key(|group| group.iter().map(last).min());
            }
            ModelOrder::Name => groups.sort_by_cached_key(|group| cards[group[0]].name.to_lowercase()),
            ModelOrder::Size => groups.sort_by_key(|group| std::cmp::Reverse(bytes(group))),
            ModelOrder::Fit => {
                let rank = |group: &Vec<usize>| group.iter().filter_map(|at| self.ranks.get(*at)).min().copied();
                groups.sort_by_key(|group| (rank(group), std::cmp::Reverse(bytes(group))));
            }
        }
        groups
    }
}

/// True if the card contains all `words`, which are in lower case.
fn has(card: &ModelCard, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let text = format!("{} {} {} {}", card.name, card.architecture, card.weight_type, card.id.key()).to_lowercase();
    words.iter().all(|word| text.contains(word.as_str()))
}

/// True if both are files of one model, with different quantisations or places.
fn is_same_model(a: &ModelCard, b: &ModelCard) -> bool {
    let shape = |card: &ModelCard| (card.layers, card.neurons, card.experts, card.context);
    let are_files = matches!((&a.id, &b.id), (ModelId::Path(_), ModelId::Path(_)));
    are_files && a.name.eq_ignore_ascii_case(&b.name) && a.architecture == b.architecture && shape(a) == shape(b)
}

/// The label of a file in the group of its model: its quantisation, or its name if another file has
/// the same quantisation.
pub fn file_label(cards: &[ModelCard], group: &[usize], at: usize) -> String {
    let of = |at: usize| {
        let named = match &cards[at].id {
            ModelId::Path(path) => path.to_str().and_then(quantization),
            ModelId::Builtin | ModelId::Remote(_) => None,
        };
        named.unwrap_or_else(|| cards[at].weight_type.to_string())
    };
    let label = of(at);
    match group.iter().any(|other| *other != at && of(*other) == label) {
        true => cards[at].id.to_string(),
        false => label,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use thermocline_engine::quant::TensorType;

    use super::*;

    /// Creates a card for a file at `path` of `bytes` bytes.
    fn card(name: &str, path: &str, bytes: u64) -> ModelCard {
        let builtin = ModelCard::read(&ModelId::Builtin).unwrap();
        let id = ModelId::Path(PathBuf::from(path));
        ModelCard { id, name: name.to_owned(), bytes, weight_type: TensorType::Q8_0, ..builtin }
    }

    fn cards() -> Vec<ModelCard> {
        vec![
            card("Zebra", "/z.gguf", 5),
            card("Apple", "/a/apple-Q8_0.gguf", 30),
            card("apple", "/b/apple-Q4_K_M.gguf", 20),
            card("Middle", "/m.gguf", 10),
        ]
    }

    #[test]
    fn files_of_a_model_are_together_and_models_in_the_order_that_was_chosen() {
        let cards = cards();
        let inputs = |order, recent: &[&str], ranks: &[u8]| {
            let recent = recent.iter().map(|key| (*key).to_owned()).collect();
            ShelfInputs { order, recent, ranks: ranks.to_vec(), ..ShelfInputs::default() }.groups(&cards)
        };
        let apple = vec![2, 1];
        assert_eq!(inputs(ModelOrder::LastUsed, &[], &[]), [vec![0], apple.clone(), vec![3]], "as they were found");
        let recent = ["/m.gguf", "/a/apple-Q8_0.gguf"];
        assert_eq!(inputs(ModelOrder::LastUsed, &recent, &[]), [vec![3], apple.clone(), vec![0]]);
        assert_eq!(inputs(ModelOrder::Name, &[], &[]), [apple.clone(), vec![3], vec![0]]);
        assert_eq!(inputs(ModelOrder::Size, &[], &[]), [apple.clone(), vec![3], vec![0]]);
        assert_eq!(inputs(ModelOrder::Fit, &[], &[0, 3, 2, 0]), [vec![3], vec![0], apple], "the larger of two first");
    }

    #[test]
    fn filter_finds_words_in_names_quantisations_and_folders() {
        let cards = cards();
        let left = |filter: &str| ShelfInputs { filter: filter.to_owned(), ..ShelfInputs::default() }.groups(&cards);
        assert_eq!(left("APPLE q4_k"), [vec![2]]);
        assert_eq!(left("/b/"), [vec![2]]);
        assert_eq!(left(" "), left(""));
        assert!(left("apple zebra").is_empty());
    }

    #[test]
    fn file_of_a_model_is_called_by_its_quantisation_unless_another_has_it_too() {
        let mut cards = cards();
        assert_eq!([1, 2].map(|at| file_label(&cards, &[2, 1], at)), ["Q8_0", "Q4_K_M"]);
        cards[2] = card("apple", "/b/apple-second.gguf", 20);
        assert_eq!([1, 2].map(|at| file_label(&cards, &[2, 1], at)), ["apple-Q8_0", "apple-second"]);
    }
}
