//! Downloads from a test server that misbehaves on demand.

use std::{
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use super::{
    testing::{ServerBehaviour, serve, sha256},
    *,
};
use thermocline_host::testing::until;

fn content() -> Vec<u8> {
    (0..900_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Starts a server with one behaviour per request. The last behaviour is repeated. Returns its
/// address and its request count.
fn server(manners: Vec<ServerBehaviour>) -> (String, Arc<AtomicUsize>) {
    serve(content(), manners)
}

fn source(address: &str, sha256: Option<String>) -> DownloadSource {
    DownloadSource { url: format!("{address}/m.gguf"), bytes: Some(900_000), sha256 }
}

fn get(source: &DownloadSource, to: &Path) -> Result<FetchedFile, DownloadError> {
    fetch(&agent(), source, to, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn fetch_resumes_broken_transfers_and_verifies_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("models/m.gguf");
    let closing = vec![
        ServerBehaviour::ClosesAfter(300_000),
        ServerBehaviour::ClosesAfter(0),
        ServerBehaviour::ClosesAfter(400_000),
        ServerBehaviour::Well,
    ];
    let (address, asked) = server(closing);
    let source = source(&address, Some(sha256(&content()).to_uppercase()));
    for arrived in [300_000, 300_000, 700_000] {
        let error = get(&source, &to).unwrap_err();
        assert!(error.is_passing(), "{error}");
        assert!(!to.exists());
        assert_eq!(std::fs::metadata(folder.path().join("models/m.gguf.part")).unwrap().len(), arrived);
    }
    let fetched = get(&source, &to).unwrap();
    assert_eq!(fetched, FetchedFile { bytes: 900_000, sha256: sha256(&content()), verified: true });
    assert_eq!(std::fs::read(&to).unwrap(), content());
    assert_eq!(std::fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    assert!(matches!(get(&source, &to), Err(DownloadError::Exists(_))));
    assert_eq!(asked.load(SeqCst), 4);
}

#[test]
fn fetch_restarts_if_the_file_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("m.gguf");
    let (address, _) = server(vec![ServerBehaviour::ClosesAfter(300_000), ServerBehaviour::Changed]);
    let source = source(&address, None);
    get(&source, &to).unwrap_err();
    let fetched = get(&source, &to).unwrap();
    assert!(!fetched.verified);
    assert!(std::fs::read(&to).unwrap().into_iter().rev().eq(content()));
}

#[test]
fn fetch_copes_with_missing_ranges_and_refuses_wrong_checksums_and_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("m.gguf");
    let (address, _) = server(vec![ServerBehaviour::ClosesAfter(300_000), ServerBehaviour::NoRanges]);
    get(&source(&address, None), &to).unwrap_err();
    let error = get(&source(&address, Some("00".repeat(32))), &to).unwrap_err();
    assert!(matches!(&error, DownloadError::Checksum { got, .. } if *got == sha256(&content())), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing wrong is kept");

    let short = DownloadSource { bytes: Some(5), ..source(&address, None) };
    assert!(matches!(get(&short, &to), Err(DownloadError::Answer { .. })));
    for (status, passes) in [(404, false), (403, false), (500, true), (429, true)] {
        let (address, _) = server(vec![ServerBehaviour::Says(status)]);
        let error = get(&source(&address, None), &to).unwrap_err();
        assert!(matches!(&error, DownloadError::Status { status: it, .. } if *it == status));
        assert_eq!(error.is_passing(), passes, "{error}");
    }
    let unreachable = source("http://127.0.0.1:9", None);
    assert!(get(&unreachable, &to).unwrap_err().is_passing());
}

fn wait(downloads: &Downloads, id: DownloadId, what: &str, is: impl Fn(&DownloadStatus) -> bool) -> DownloadStatus {
    until(what, || downloads.list().into_iter().find(|it| it.id == id).filter(&is))
}

#[test]
fn queue_retries_temporary_failures() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _) =
        server(vec![ServerBehaviour::Well, ServerBehaviour::ClosesAfter(300_000), ServerBehaviour::Well]);
    let offers = hub::list_models(&agent(), &address, "owner/name").unwrap();
    assert_eq!((offers.len(), offers[0].bytes()), (1, 900_000));
    let requests = offers[0].requests(&address, "owner/name", folder.path());
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let downloads = Downloads::new(move || {
        count.fetch_add(1, SeqCst);
    })
    .unwrap();
    let id = downloads.add(requests[0].clone());
    assert_eq!(downloads.add(requests[0].clone()), id);
    let waits = |status: &DownloadStatus| matches!(&status.state, DownloadState::Retrying { .. });
    wait(&downloads, id, "a retry", waits);
    let done = wait(&downloads, id, "the end", |status| matches!(status.state, DownloadState::Done(_)));
    assert_eq!((done.progress.done, done.progress.total), (900_000, Some(900_000)));
    assert_eq!(std::fs::read(folder.path().join("owner/name/sub/m.gguf")).unwrap(), content());
    assert!(told.load(SeqCst) >= 3);
}

#[test]
fn downloads_are_paused_resumed_and_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("m.gguf");
    let (address, _) =
        server(vec![ServerBehaviour::ClosesAfter(300_000), ServerBehaviour::Says(404), ServerBehaviour::Well]);
    let downloads = Downloads::new(|| ()).unwrap();
    let id = downloads.add(DownloadRequest { source: source(&address, None), to: to.clone() });
    wait(&downloads, id, "a retry", |status| matches!(status.state, DownloadState::Retrying { .. }));
    downloads.pause(id);
    // The later download is retried while the first one is paused and could have been retried, too.
    let (later, _) = server(vec![ServerBehaviour::ClosesAfter(300_000), ServerBehaviour::Well]);
    let third = downloads.add(DownloadRequest { source: source(&later, None), to: folder.path().join("third.gguf") });
    wait(&downloads, third, "its end", |status| matches!(status.state, DownloadState::Done(_)));
    wait(&downloads, id, "a pause", |status| matches!(status.state, DownloadState::Paused));
    downloads.resume(id);
    wait(&downloads, id, "a failure", |status| matches!(status.state, DownloadState::Failed(_)));
    let other = downloads.add(DownloadRequest { source: source(&address, None), to: folder.path().join("other.gguf") });
    wait(&downloads, other, "another", |status| matches!(status.state, DownloadState::Done(_)));
    assert!(folder.path().join("m.gguf.part").exists());
    downloads.remove(id, true);
    assert!(!folder.path().join("m.gguf.part").exists());
    assert_eq!(downloads.list().len(), 2);
}
