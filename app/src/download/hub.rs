//! What there is to download: the files of a Hugging Face repository, and a short list of models whose neurons fire sparsely.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{DownloadError, Source, Wish};

/// Where repositories are.
pub const HUGGING_FACE: &str = "https://huggingface.co";

/// A model worth knowing. Sizes are listed by the repository itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// What people call it.
    pub name: &'static str,
    /// Whose repository.
    pub repository: &'static str,
    /// Why one would want it.
    pub about: &'static str,
}

/// Models of the ReLU family, published with their predictors.
pub const PICKS: [Pick; 8] = [
    Pick {
        name: "ProSparse 7B",
        repository: "PowerInfer/prosparse-llama-2-7b-gguf",
        about: "Llama 2 made sparse: about 89 % of the neurons are silent",
    },
    Pick {
        name: "ProSparse 13B",
        repository: "PowerInfer/prosparse-llama-2-13b-gguf",
        about: "the larger one, 88 % silent",
    },
    Pick {
        name: "Bamboo 7B",
        repository: "PowerInfer/Bamboo-base-v0.1-gguf",
        about: "of Mistral's shape, with two ReLUs: about 85 % silent",
    },
    Pick {
        name: "Bamboo 7B DPO",
        repository: "PowerInfer/Bamboo-DPO-v0.1-gguf",
        about: "the same, taught to answer questions",
    },
    Pick {
        name: "ReluLLaMA 7B",
        repository: "PowerInfer/ReluLLaMA-7B-PowerInfer-GGUF",
        about: "Llama 2 with a ReLU: about 67 % silent",
    },
    Pick {
        name: "ReluLLaMA 13B",
        repository: "PowerInfer/ReluLLaMA-13B-PowerInfer-GGUF",
        about: "the larger one, 72 % silent",
    },
    Pick {
        name: "ReluLLaMA 70B",
        repository: "PowerInfer/ReluLLaMA-70B-PowerInfer-GGUF",
        about: "the largest; needs some 40 GiB of memory",
    },
    Pick {
        name: "ReluFalcon 40B",
        repository: "PowerInfer/ReluFalcon-40B-PowerInfer-GGUF",
        about: "Falcon with its ReLU: the most to gain from few neurons",
    },
];

/// A model in a repository: one file, or all parts of a split one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its name: the path of the (first) file in the repository.
    pub name: String,
    /// Its files.
    pub files: Vec<OfferedFile>,
}

/// A file in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedFile {
    /// Path in the repository.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal, where the repository knows it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
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
/// [`DownloadError`], also for a name that cannot be a repository's.
pub fn offers(agent: &ureq::Agent, hub: &str, repository: &str) -> Result<Vec<Offer>, DownloadError> {
    let Some(repository) = repository_name(repository) else {
        let expected = "a repository like owner/name";
        return Err(DownloadError::Answer { url: hub.to_owned(), expected, got: format!("{repository:?}") });
    };
    let url = format!("{hub}/api/models/{repository}/tree/main?recursive=true");
    let network = |source| DownloadError::Network { url: url.clone(), source: Box::new(source) };
    let mut response = agent.get(&url).call().map_err(network)?;
    let status = response.status().as_u16();
    if status != 200 {
        let hint = match status {
            401 | 404 => ": there is no such public repository",
            _ => "",
        };
        return Err(DownloadError::Status { url, status, hint });
    }
    // A list of files, not the files.
    let json = response.body_mut().with_config().limit(32 << 20).read_to_string().map_err(network)?;
    let entries: Vec<Entry> = serde_json::from_str(&json).map_err(|error| DownloadError::Answer {
        url: url.clone(),
        expected: "a list of files",
        got: error.to_string(),
    })?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file" && is_model(&entry.path)).map(|entry| {
        let (bytes, sha256) = match entry.lfs {
            Some(lfs) => (lfs.size, Some(lfs.oid)),
            None => (entry.size, None),
        };
        OfferedFile { path: entry.path, bytes, sha256 }
    });
    Ok(grouped(files.collect()))
}

/// `owner/name` of what a user types or pastes: that, or an address of the repository.
pub fn repository_name(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches('/');
    let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let hubs = ["huggingface.co/", "www.huggingface.co/", "hf.co/"];
    let text = match hubs.iter().find_map(|it| address.unwrap_or(text).strip_prefix(it)) {
        Some(path) => path,
        // Of some other site.
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
    // `tree/main` and the like may follow, nothing else.
    let rest = parts.next().is_none_or(|part| matches!(part, "tree" | "blob" | "resolve"));
    (valid(owner) && valid(name) && rest).then(|| format!("{owner}/{name}"))
}

impl Offer {
    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// What to download for it into `folder`, a folder of the repository's below.
    pub fn wishes(&self, hub: &str, repository: &str, folder: &Path) -> Vec<Wish> {
        let wish = |file: &OfferedFile| Wish {
            source: Source {
                url: format!("{hub}/{repository}/resolve/main/{}", encoded(&file.path)),
                bytes: Some(file.bytes),
                sha256: file.sha256.clone(),
            },
            to: folder.join(local(repository)).join(local(&file.path)),
        };
        self.files.iter().map(wish).collect()
    }
}

fn is_model(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

/// A path of the repository's as one below ours, whatever it says.
fn local(path: &str) -> PathBuf {
    path.split(['/', '\\'])
        .filter(|part| !matches!(*part, "" | "." | ".."))
        .map(|part| part.replace(':', "_"))
        .collect()
}

/// With everything escaped that has a meaning in an address.
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Stem, part and parts of `name-00001-of-00003.gguf`.
fn split_name(path: &str) -> Option<(&str, u32, u32)> {
    let (rest, parts) = path.get(..path.len() - 5)?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    Some((stem, part.parse().ok()?, parts.parse().ok()?))
}

/// Files that belong together as one; a split model that lacks a part is left out.
fn grouped(mut files: Vec<OfferedFile>) -> Vec<Offer> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut offers: Vec<Offer> = Vec::new();
    let mut expected = 0;
    for file in files {
        match split_name(&file.path) {
            None => {
                expected = 0;
                offers.push(Offer { name: file.path.clone(), files: vec![file] });
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
                    offers.push(Offer { name: file.path.clone(), files: vec![file] });
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

    fn file(path: &str) -> OfferedFile {
        OfferedFile { path: path.to_owned(), bytes: 10, sha256: None }
    }

    #[test]
    fn repositories_as_people_write_them() {
        for text in ["a/b", " https://huggingface.co/a/b ", "hf.co/a/b/", "https://huggingface.co/a/b/tree/main"] {
            assert_eq!(repository_name(text).as_deref(), Some("a/b"), "{text}");
        }
        for text in ["", "a", "a/", "/b", "a/b/c", "a b/c", "../etc", "a/..", "https://example.com/a/b?x"] {
            assert_eq!(repository_name(text), None, "{text}");
        }
    }

    #[test]
    fn parts_of_a_split_model_are_one_offer() {
        let names = ["q8-00002-of-00002.gguf", "q4.gguf", "q8-00001-of-00002.gguf", "sub/f16-00001-of-00003.gguf"];
        let offers = grouped(names.map(file).to_vec());
        let shape: Vec<_> = offers.iter().map(|offer| (&*offer.name, offer.files.len())).collect();
        assert_eq!(shape, [("q4.gguf", 1), ("q8-00001-of-00002.gguf", 2)], "one lacks two parts");
    }

    #[test]
    fn no_path_of_a_repository_leaves_the_folder() {
        let offer = Offer { name: String::new(), files: vec![file("../../etc/a b.gguf"), file("C:\\x\\y.gguf")] };
        let wishes = offer.wishes("https://hub", "owner/name", Path::new("/models"));
        assert_eq!(wishes[0].to, Path::new("/models/owner/name/etc/a b.gguf"));
        assert_eq!(wishes[0].source.url, "https://hub/owner/name/resolve/main/../../etc/a%20b.gguf");
        assert_eq!(wishes[1].to, Path::new("/models/owner/name/C_/x/y.gguf"));
    }
}
