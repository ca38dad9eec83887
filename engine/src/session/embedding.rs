//! Embeds and ranks texts: hidden states are pooled into one vector of length 1, or into a score.

use super::engine_state::EngineState;
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Array, Metadata};
use thermocline_model::{Classifier, Model, Pooling};
use thermocline_text::{ContentGuard, PromptText, TokenPair};

/// What a request wants of its prompt's hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateReading {
    /// An embedding. `None`: pooled as the model asks, or else by the mean.
    Embedding(Option<Pooling>),
    /// The relevance of the second text of a pair to the first, by a reranker.
    Relevance,
}

/// Texts that a model wants in front of the texts that it embeds, by name (`query`, `document`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmbeddingPrompts {
    named: Vec<(String, String)>,
    default: Option<String>,
}

/// Names of other programs for the prompts of models.
const SYNONYMS: [(&str, &[&str]); 2] = [
    ("query", &["query", "search_query", "web_search_query"]),
    ("document", &["document", "passage", "search_document", "corpus"]),
];

impl EmbeddingPrompts {
    /// The prompts that `metadata` names.
    pub fn of(metadata: &Metadata) -> Self {
        let strings = |key: &str| match metadata.array(&format!("thermocline.embedding.{key}")) {
            Ok(Some(Array::String(strings))) => strings.clone(),
            _ => Vec::new(),
        };
        let default = metadata.str("thermocline.embedding.default_prompt").ok().flatten();
        let named = strings("prompt_names").into_iter().zip(strings("prompts")).collect();
        EmbeddingPrompts { named, default: default.map(str::to_owned) }
    }

    /// The names of all prompts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| name.as_str())
    }

    /// The text in front of a text of this kind, or of a text of no kind. Empty if the model has no
    /// prompts.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model has prompts, but none of this name.
    pub fn text(&self, kind: Option<&str>) -> Result<&str> {
        let Some(kind) = kind.or(self.default.as_deref()).filter(|_| !self.named.is_empty()) else { return Ok("") };
        let find = |name: &str| self.named.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str());
        let synonyms = SYNONYMS.iter().find(|(_, names)| names.contains(&kind)).map_or(&[][..], |(_, names)| names);
        let found = find(kind).or_else(|| synonyms.iter().find_map(|name| find(name)));
        // A model may have a prompt for queries and none for documents.
        let found = found.or((!synonyms.is_empty()).then_some(""));
        found.ok_or_else(|| Error::invalid("kind of text", self.names().collect::<Vec<_>>().join(", "), kind))
    }
}

/// The pooled hidden states of the tokens so far.
#[derive(Debug)]
pub(super) struct PooledStates<'a> {
    state: &'a EngineState,
    reading: StateReading,
    pooling: Pooling,
    /// Index of the second text's first token, in a pair of texts.
    pub second_at: Option<usize>,
    sum: StateSum,
}

/// `[d_model]`: the sum of hidden states, or one of them, and their number.
#[derive(Debug)]
struct StateSum {
    sum: Vec<f64>,
    count: usize,
}

impl StateSum {
    /// Adds the hidden states of the next tokens, `[tokens, d_model]`.
    fn add(&mut self, states: &[f32], pooling: Pooling) {
        for state in states.chunks_exact(self.sum.len()) {
            match pooling {
                Pooling::First if self.count > 0 => return,
                Pooling::Last => {
                    self.count = 0;
                    self.sum.fill(0.0);
                }
                Pooling::First | Pooling::Mean => {}
            }
            self.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
            self.count += 1;
        }
    }

    fn mean(&self) -> Vec<f32> {
        self.sum.iter().map(|x| (x / self.count.max(1) as f64) as f32).collect()
    }
}

impl<'a> PooledStates<'a> {
    /// Pooled states of no tokens.
    pub fn new(state: &'a EngineState, reading: StateReading, second_at: Option<usize>) -> Self {
        let own = state.model.config.pooling;
        let pooling = match reading {
            StateReading::Embedding(wanted) => wanted.or(own).unwrap_or_default(),
            StateReading::Relevance => own.unwrap_or(Pooling::First),
        };
        let sum = StateSum { sum: vec![0.0; state.model.config.d_model], count: 0 };
        PooledStates { state, reading, pooling, second_at, sum }
    }

    /// Adds the hidden states of the next tokens, `[tokens, d_model]`.
    pub fn add(&mut self, states: &[f32]) {
        self.sum.add(states, self.pooling);
    }

    /// The embedding, at length 1 (zeros stay zeros), or the relevance, one number from 0 to 1.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if a state is not finite.
    pub fn answer(&self) -> Result<Vec<f32>> {
        let (Model { config, weights, .. }, cpu) = (&*self.state.model, self.state.device.load.open_cpu()?);
        match self.reading {
            StateReading::Embedding(_) => at_length_1(&weights.embedding_head.embedding(&cpu, self.sum.mean())),
            StateReading::Relevance => {
                Ok(vec![classifier(&self.state.model)?.relevance(&cpu, self.sum.mean(), config.norm_eps)?])
            }
        }
    }
}

/// Scales an embedding to length 1; zeros stay zeros.
fn at_length_1(embedding: &[f32]) -> Result<Vec<f32>> {
    let length = embedding.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::NotFinite { what: "hidden states", got: length.to_string() });
    }
    let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
    Ok(embedding.iter().map(|x| (f64::from(*x) * factor) as f32).collect())
}

/// The classifier of a reranker.
fn classifier(model: &Model) -> Result<&Classifier> {
    model.weights.embedding_head.classifier.as_ref().ok_or_else(|| {
        let got = format!("{}, which has no classifier", model.config.name);
        Error::unsupported("ranking of texts", got, "a reranker; `thermocline embed` embeds texts with other models")
    })
}

/// Refuses a request that the model cannot answer, by name.
pub(super) fn check_purpose(model: &Model, reading: Option<StateReading>) -> Result<()> {
    match reading {
        Some(StateReading::Relevance) => classifier(model).map(drop),
        Some(StateReading::Embedding(_)) => Ok(()),
        None if !model.config.embeds_only() => Ok(()),
        None => {
            let (does, command) = match model.weights.embedding_head.classifier {
                Some(_) => ("ranks", "thermocline rerank"),
                None => ("embeds", "thermocline embed"),
            };
            let got = format!("{} ({}), which {does} texts", model.config.name, model.config.architecture);
            Err(Error::unsupported("text generation", got, format!("a model that generates text; use `{command}`")))
        }
    }
}

/// Question of rerankers that answer yes or no (Qwen 3), unless the file has its own form.
const QUESTION: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and \
    the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
    <Instruct>: Given a web search query, retrieve relevant passages that answer the query\n\
    <Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The tokens of a query and a document, as the reranker reads them.
pub(super) fn encode_pair(state: &EngineState, query: &str, document: &str) -> Result<TokenPair> {
    let tokenizer = &state.text.tokenizer;
    if state.model.config.is_encoder() {
        return tokenizer.encode_pair(query, document);
    }
    let own = state.model.checkpoint.metadata.str("tokenizer.chat_template.rerank")?;
    let guard = ContentGuard::new((!state.text.special_in_content).then_some(tokenizer));
    let mut prompt = PromptText::default();
    let mut rest = own.unwrap_or(QUESTION);
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        prompt.push_format(before);
        rest = match (after.strip_prefix("{query}"), after.strip_prefix("{document}")) {
            (Some(after), _) => {
                prompt.push_content(query, guard);
                after
            }
            (_, Some(after)) => {
                prompt.push_content(document, guard);
                after
            }
            _ => {
                prompt.push_format("{");
                &after[1..]
            }
        };
    }
    prompt.push_format(rest);
    let ids = tokenizer.encode_prompt(&prompt)?;
    Ok(TokenPair { second_at: ids.len(), ids })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_formats::format::Value;

    #[test]
    fn states_are_pooled_by_mean_first_and_last() {
        let pooled = |pooling| {
            let mut sum = StateSum { sum: vec![0.0; 2], count: 0 };
            sum.add(&[1.0, 2.0, 3.0, 6.0], pooling);
            sum.add(&[2.0, -8.0], pooling);
            sum.mean()
        };
        assert_eq!(pooled(Pooling::Mean), [2.0, 0.0]);
        assert_eq!((pooled(Pooling::First), pooled(Pooling::Last)), (vec![1.0, 2.0], vec![2.0, -8.0]));
    }

    #[test]
    fn embeddings_have_length_1() {
        assert_eq!(at_length_1(&[3.0, -4.0]).unwrap(), [0.6, -0.8]);
        assert_eq!(at_length_1(&[0.0, 0.0]).unwrap(), [0.0, 0.0]);
        assert!(matches!(at_length_1(&[1.0, f32::NAN]), Err(Error::NotFinite { .. })));
    }

    #[test]
    fn prompts_are_found_by_name_synonym_and_default() {
        let mut metadata = Metadata::new("m.gguf");
        assert_eq!(EmbeddingPrompts::of(&metadata).text(Some("query")).unwrap(), "");
        let strings = |texts: [&str; 2]| Value::Array(Array::String(texts.map(str::to_owned).to_vec()));
        metadata.set("thermocline.embedding.prompt_names", strings(["query", "passage"]));
        metadata.set("thermocline.embedding.prompts", strings(["q: ", "p: "]));
        let prompts = EmbeddingPrompts::of(&metadata);
        for (kind, text) in
            [(Some("query"), "q: "), (Some("search_query"), "q: "), (Some("document"), "p: "), (None, "")]
        {
            assert_eq!(prompts.text(kind).unwrap(), text, "{kind:?}");
        }
        assert!(prompts.text(Some("song")).unwrap_err().to_string().contains("query, passage"));
        metadata.set("thermocline.embedding.default_prompt", Value::String("passage".to_owned()));
        assert_eq!(EmbeddingPrompts::of(&metadata).text(None).unwrap(), "p: ");
    }
}
