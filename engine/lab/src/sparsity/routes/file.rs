//! Routes in a file. A line of JSON describes the routes. Then the experts follow as little-endian
//! u16, token by token and layer by layer.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{RouteLayer, Routes};
use thermocline_base::{
    error::{Error, FileAction, Location, Result},
    files::{Form, NewFile},
};

/// First line of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteHeader {
    /// Version of the file format.
    thermocline_routes: u32,
    source: String,
    tokens: usize,
    layers: Vec<RouteLayer>,
    other_bytes: u64,
}

const VERSION: u32 = 1;
/// Most bytes of the header.
const LONGEST: u64 = 16 << 20;

impl Routes {
    /// Writes the routes to a temporary file beside `path` and renames it.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |source| Error::io(FileAction::Write, path, source);
        let mut file = NewFile::create(path, Form::Random)?;
        let (source, layers, tokens) = (self.source.clone(), self.layers.clone(), self.tokens());
        let header = RouteHeader { thermocline_routes: VERSION, source, tokens, layers, other_bytes: self.other_bytes };
        serde_json::to_writer(&mut file, &header).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").map_err(failed)?;
        let mut row = Vec::new();
        for token in 0..tokens {
            row.clear();
            for at in 0..self.layers.len() {
                row.extend(self.chosen(at, token).iter().flat_map(|expert| expert.to_le_bytes()));
            }
            file.write_all(&row).map_err(failed)?;
        }
        file.finish_unsynced()
    }

    /// Reads a file that [`Routes::write`] wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] for another or an incomplete file.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |source| Error::io(FileAction::Read, path, source);
        let refuse = |expected: String, got: String| Error::malformed(path, Location::File, expected, got);
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        (&mut file).take(LONGEST).read_until(b'\n', &mut line).map_err(failed)?;
        let header: RouteHeader = serde_json::from_slice(&line)
            .map_err(|error| refuse("recorded routes after a line of JSON".to_owned(), error.to_string()))?;
        if header.thermocline_routes != VERSION {
            return Err(refuse(format!("version {VERSION}"), header.thermocline_routes.to_string()));
        }
        let mut routes = Routes::new(header.source, header.layers, header.other_bytes)?;
        let mut data = Vec::new();
        file.read_to_end(&mut data).map_err(failed)?;
        let width: usize = routes.layers.iter().map(|layer| layer.used).sum();
        let wanted = width.checked_mul(2).and_then(|bytes| bytes.checked_mul(header.tokens));
        if wanted != Some(data.len()) {
            let expected = format!("routes of {} tokens, each of {width} experts of 2 bytes", header.tokens);
            return Err(refuse(expected, format!("{} bytes", data.len())));
        }
        for token in data.chunks_exact(2 * width) {
            let mut experts = token.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
            for at in 0..routes.layers.len() {
                let RouteLayer { experts: count, used, layer, .. } = routes.layers[at];
                for expert in experts.by_ref().take(used) {
                    if usize::from(expert) >= count {
                        return Err(refuse(format!("experts below {count} in layer {layer}"), expert.to_string()));
                    }
                    routes.chosen[at].push(expert);
                }
            }
        }
        Ok(routes)
    }
}
