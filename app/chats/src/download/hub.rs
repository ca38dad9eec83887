//! Models for download: the files of a Hugging Face repository, and a few recommended models whose
//! neurons fire sparsely.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use thermocline_engine::model::Companion;

use super::{DownloadError, DownloadRequest, DownloadSource, json_request::JsonRequest, quantization};

/// Bytes of a path that are percent-encoded in an address.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// Base address of the repositories.
pub const HUGGING_FACE: &str = "https://huggingface.co";

/// Largest file list that is read, in bytes.
const LIST: u64 = 32 << 20;

/// Quantisations chosen by default, the best compromise of size and quality first.
const USUAL: [&str; 8] = ["Q4_K_M", "Q4_K_S", "Q4_0", "MXFP4", "IQ4_XS", "Q5_K_M", "Q8_0", "F16"];

/// Recommended ReLU models: name, repository of [`SPARSE_OWNER`], and description. The models in
/// PowerInfer's own format include predictors. The repositories list the sizes.
pub const RECOMMENDED_MODELS: [[&str; 3]; 10] = [
    ["SmallThinker 4B", "SmallThinker-4BA0.6B-Instruct-GGUF", "made for PCs: few experts and neurons per token"],
    ["SmallThinker 21B", "SmallThinker-21BA3B-Instruct-GGUF", "the larger version, needs about 12 GiB of memory"],
    ["ProSparse 7B", "prosparse-llama-2-7b-gguf", "sparse Llama 2: about 89 % of the neurons are silent"],
    ["ProSparse 13B", "prosparse-llama-2-13b-gguf", "the larger version, 88 % silent"],
    ["Bamboo 7B", "Bamboo-base-v0.1-gguf", "like Mistral, with two ReLUs: about 85 % silent"],
    ["Bamboo 7B DPO", "Bamboo-DPO-v0.1-gguf", "the same model, trained to answer questions"],
    ["ReluLLaMA 7B", "ReluLLaMA-7B-PowerInfer-GGUF", "Llama 2 with a ReLU: about 67 % silent"],
    ["ReluLLaMA 13B", "ReluLLaMA-13B-PowerInfer-GGUF", "the larger version, 72 % silent"],
    ["ReluLLaMA 70B", "ReluLLaMA-70B-PowerInfer-GGUF", "the largest version, needs about 40 GiB of memory"],
    ["ReluFalcon 40B", "ReluFalcon-40B-PowerInfer-GGUF", "Falcon with ReLU: gains most from sparsity"],
];

/// Owner of the repositories of [`RECOMMENDED_MODELS`].
pub const SPARSE_OWNER: &str = "PowerInfer";

/// A model in a repository: one file, or all parts of a split one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    /// Path of the (first) file in the repository.
    pub name: String,
    /// Files of the model.
    pub files: Vec<HubFile>,
}

/// A file in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal, if the repository lists it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct HubEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// The GGUF models of `repository` (`owner/name`) at `hub`.
///
/// # Errors
/// [`DownloadError`], also if `repository` is not a valid name.
pub fn list_models(agent: &ureq::Agent, hub: &str, repository: &str) -> Result<Vec<HubModel>, DownloadError> {
    let Some(repository) = repository_name(repository) else {
        let expected = "a repository like owner/name";
        return Err(DownloadError::Answer { url: hub.to_owned(), expected, got: format!("{repository:?}") });
    };
    let url = format!("{hub}/api/models/{repository}/tree/main?recursive=true");
    let hint = |status: u16| match status {
        401 | 404 => ": this public repository does not exist",
        _ => "",
    };
    let entries: Vec<HubEntry> =
        JsonRequest { url: &url, expected: "a list of files", limit: LIST, hint }.send(agent)?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file" && is_model(&entry.path)).map(|entry| {
        let (bytes, sha256) = match entry.lfs {
            Some(lfs) => (lfs.size, Some(lfs.oid)),
            None => (entry.size, None),
        };
        HubFile { path: entry.path, bytes, sha256 }
    });
    Ok(grouped(files.collect()))
}

/// Reads `owner/name` from a user's input, which may also be the repository's address.
pub fn repository_name(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches('/');
    let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let hubs = ["huggingface.co/", "www.huggingface.co/", "hf.co/"];
    let text = match hubs.iter().find_map(|it| address.unwrap_or(text).strip_prefix(it)) {
        Some(path) => path,
        // The address of another site.
        None if address.is_some() => return None,
        None => text,
    };
    let mut parts = text.split('/');
    let (owner, name) = (parts.next()?, parts.next()?);
    let valid = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    // Only paths such as `tree/main` may follow.
    let rest = parts.next().is_none_or(|part| matches!(part, "tree" | "blob" | "resolve"));
    (valid(owner) && valid(name) && rest).then(|| format!("{owner}/{name}"))
}

impl HubModel {
    /// Size of all its files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Its quantisation, from its name.
    pub fn quantization(&self) -> Option<String> {
        quantization(&self.name)
    }

    /// Downloads of its files to a subfolder of `folder` named after the repository.
    pub fn requests(&self, hub: &str, repository: &str, folder: &Path) -> Vec<DownloadRequest> {
        let request = |file: &HubFile| DownloadRequest {
            source: DownloadSource {
                url: format!("{hub}/{repository}/resolve/main/{}", utf8_percent_encode(&file.path, RESERVED)),
                bytes: Some(file.bytes),
                sha256: file.sha256.clone(),
            },
            to: folder.join(local(repository)).join(local(&file.path)),
        };
        self.files.iter().map(request).collect()
    }
}

/// The model of a repository chosen by default; `None` if there is none.
pub fn preferred(models: &[HubModel]) -> Option<&HubModel> {
    let rank = |model: &HubModel| {
        let quantization = model.quantization();
        USUAL.iter().position(|usual| quantization.as_deref() == Some(usual)).unwrap_or(USUAL.len())
    };
    models.iter().min_by_key(|model| (rank(model), model.bytes(), model.name.len()))
}

fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && Companion::of_name(&name).is_none()
}

/// Converts a path in the repository to a relative path without `..` or drives.
fn local(path: &str) -> PathBuf {
    path.split(['/', '\\'])
        .filter(|part| !matches!(*part, "" | "." | ".."))
        .map(|part| part.replace(':', "_"))
        .collect()
}

/// Stem, part number and part count of `name-00001-of-00003.gguf`.
fn split_name(path: &str) -> Option<(&str, u32, u32)> {
    let (rest, parts) = path.get(..path.len() - 5)?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    Some((stem, part.parse().ok()?, parts.parse().ok()?))
}

/// Groups the parts of split models, and leaves out models that lack a part.
fn grouped(mut files: Vec<HubFile>) -> Vec<HubModel> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut offers: Vec<HubModel> = Vec::new();
    let mut expected = 0;
    for file in files {
        match split_name(&file.path) {
            None => {
                expected = 0;
                offers.push(HubModel { name: file.path.clone(), files: vec![file] });
            }
            Some((stem, part, parts)) => match offers.last_mut() {
                Some(offer)
                    if part > 1
                        && expected == parts
                        && offer.files.len() as u32 == part - 1
                        && split_name(&offer.name).is_some_and(|(of, ..)| of == stem) =>
                {
                    offer.files.push(file);
                }
                _ if part == 1 => {
                    expected = parts;
                    offers.push(HubModel { name: file.path.clone(), files: vec![file] });
                }
                _ => {}
            },
        }
    }
    offers.retain(|offer| split_name(&offer.name).is_none_or(|(.., parts)| offer.files.len() as u32 == parts));
    offers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> HubFile {
        HubFile { path: path.to_owned(), bytes: 10, sha256: None }
    }

    #[test]
    fn repository_name_accepts_names_and_addresses() {
        for text in ["a/b", " https://huggingface.co/a/b ", "hf.co/a/b/", "https://huggingface.co/a/b/tree/main"] {
            assert_eq!(repository_name(text).as_deref(), Some("a/b"), "{text}");
        }
        for text in ["", "a", "a/", "/b", "a/b/c", "a b/c", "../etc", "a/..", "https://example.com/a/b?x"] {
            assert_eq!(repository_name(text), None, "{text}");
        }
    }

    #[test]
    fn grouped_joins_the_parts_of_a_split_model() {
        let names = ["q8-00002-of-00002.gguf", "q4.gguf", "q8-00001-of-00002.gguf", "sub/f16-00001-of-00003.gguf"];
        let offers = grouped(names.map(file).to_vec());
        let shape: Vec<_> = offers.iter().map(|offer| (&*offer.name, offer.files.len())).collect();
        assert_eq!(shape, [("q4.gguf", 1), ("q8-00001-of-00002.gguf", 2)], "one lacks two parts");
    }

    #[test]
    fn usual_quantization_is_preferred_and_companions_are_no_models() {
        let model = |name: &str| HubModel { name: name.to_owned(), files: vec![file(name)] };
        let names = |models: &[&str]| models.iter().map(|name| model(name)).collect::<Vec<_>>();
        let all = names(&["x-Q8_0.gguf", "x-UD-Q4_K_M.gguf", "x-BF16.gguf"]);
        assert_eq!(preferred(&all).map(|it| &*it.name), Some("x-UD-Q4_K_M.gguf"));
        assert_eq!(preferred(&names(&["x-IQ1_S.gguf"])).map(|it| &*it.name), Some("x-IQ1_S.gguf"));
        assert_eq!(preferred(&[]), None);
        for other in
            ["mmproj-F16.gguf", "x-mmproj-f16.gguf", "sub/MTP-x-Q4_0.gguf", "imatrix_unsloth.gguf", "README.md"]
        {
            assert!(!is_model(other), "{other}");
        }
        assert!(is_model("sub/x.GGUF"));
    }

    #[test]
    fn requests_never_leave_the_folder() {
        let offer = HubModel { name: String::new(), files: vec![file("../../etc/a b.gguf"), file("C:\\x\\y.gguf")] };
        let requests = offer.requests("https://hub", "owner/name", Path::new("/models"));
        assert_eq!(requests[0].to, Path::new("/models/owner/name/etc/a b.gguf"));
        assert_eq!(requests[0].source.url, "https://hub/owner/name/resolve/main/../../etc/a%20b.gguf");
        assert_eq!(requests[1].to, Path::new("/models/owner/name/C_/x/y.gguf"));
    }
}
