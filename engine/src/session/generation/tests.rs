//! Records of generations with drafts, with a tiny model.

use std::path::Path;

use super::super::{Engine, EngineOptions, Event, GenerationStats, Prompt, Request, Sampling, SessionOptions};
use crate::session::{SparsityChoice, SpeculationMode};
use thermocline_base::telemetry::neurons::LayerTally;
use thermocline_run::runtime::{KvType, Sparsity};

/// What a new engine records for one answer.
#[derive(Debug)]
struct Recorded {
    /// Token ids of the answer.
    ids: Vec<u32>,
    /// Statistics of the answer.
    stats: GenerationStats,
    /// Token id, position, and fired neurons of each layer, for each token on the board.
    board: Vec<(u32, usize, Vec<u32>)>,
    /// Firing tallies of every layer.
    tallies: Vec<LayerTally>,
    /// Files with firing counts for later runs.
    kept: Vec<Vec<u8>>,
}

fn record(speculation: SpeculationMode) -> Recorded {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/nemotron");
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        kv_type: KvType::F32,
        sparsity: SparsityChoice::Mode(Sparsity::Exact),
        counts: Some(folder.path().to_path_buf()),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&model, options).unwrap();
    let session = engine.session(SessionOptions::default()).unwrap();
    let prompt = (0..48).map(|at| 20 + at % 8).collect();
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(150),
        ignore_eos: true,
        speculation,
        // The number of drafts does not depend on measured times.
        drafts: (speculation != SpeculationMode::Off).then_some(4),
        ..Request::new(Prompt::Tokens(prompt))
    };
    let (mut ids, mut done) = (Vec::new(), None);
    for event in session.generate(request) {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Done { stats, .. } => done = Some(stats),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    let neurons = std::sync::Arc::clone(engine.neurons());
    let told = neurons.tokens(0..u64::MAX).into_iter();
    let board = told.map(|it| (it.token, it.position, it.layers.iter().map(|layer| layer.fired).collect())).collect();
    let tallies = (0..neurons.shape().layers()).map(|layer| neurons.tally(layer)).collect();
    // Counts are saved when the engine ends.
    drop((session, engine));
    let files = std::fs::read_dir(folder.path()).unwrap();
    let kept = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    Recorded { ids, stats: done.unwrap(), board, tallies, kept }
}

/// The board, the tallies and the saved counts contain the tokens of the text, and no rejected
/// drafts.
#[test]
fn rejected_drafts_leave_no_trace_in_records() {
    let (plain, drafted) = (record(SpeculationMode::Off), record(SpeculationMode::Always));
    assert_eq!(drafted.ids, plain.ids);
    let drafts = drafted.stats.drafts.total();
    assert!(drafts.accepted < drafts.drafted, "{drafts:?}: none was rejected");
    assert_eq!(drafted.board, plain.board);
    // The last token of an answer is not computed.
    assert_eq!(drafted.board.len(), 48 + 149);
    assert_eq!(drafted.tallies, plain.tallies);
    assert!(drafted.tallies[0].tokens == 197 && drafted.tallies[0].counts.iter().any(|count| *count > 0));
    assert_eq!((drafted.kept.len(), &drafted.kept), (1, &plain.kept));
}
