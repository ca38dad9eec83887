//! Small vision models whose chat template writes pictures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use thermocline_engine::pictures::Picture;

/// The token in whose place pictures are: `</s>`, which the template writes.
pub const PICTURE: u32 = 1;

const TEMPLATE: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in \
                        m.content %}{{ eos_token if p.type == 'image' else p.text }}{% endfor %}{% endif %}\n{% endfor %}";

/// Returns the folder of the model `name` in `fixtures/towers`.
pub fn tower_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/towers").join(name)
}

/// Sets a value of a JSON file.
pub fn set_json(path: &Path, key: &str, value: Value) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut values: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    values[key] = value;
    fs::write(path, values.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Copies the model `name` of `fixtures/towers` to `to`, with [`PICTURE`] and a template for
/// pictures.
pub fn with_pictures(name: &str, to: &Path) {
    let from = tower_fixture(name);
    let files = fs::read_dir(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    for file in files.flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap_or_else(|error| panic!("{error}"));
    }
    set_json(&to.join("config.json"), "image_token_id", json!(PICTURE));
    set_json(&to.join("tokenizer_config.json"), "chat_template", json!(TEMPLATE));
}

/// Three pictures: those of the fixture in `folder`, and a grey one of the first one's size.
pub fn pictures(folder: &Path) -> [Picture; 3] {
    let open = |name: &str| Picture::open(&folder.join(name)).unwrap_or_else(|error| panic!("{error}"));
    let [whole, resized] = ["whole.png", "resized.png"].map(open);
    let (width, height) = (whole.width(), whole.height());
    let grey = Picture::from_rgb(width, height, vec![120; width * height * 3]);
    [whole, resized, grey.unwrap_or_else(|error| panic!("{error}"))]
}
