//! The workspace's sources and the paths they import.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility, visit::Visit};

/// One imported path, absolute: the package, then modules, then an item.
#[derive(Debug, Clone)]
pub struct Import {
    /// The importing module.
    pub from: Vec<String>,
    pub to: Vec<String>,
    /// Of the importing module, below the workspace's root.
    pub file: PathBuf,
}

/// A struct, enum, union, trait or alias that is not private to its module.
#[derive(Debug, Clone)]
pub struct NamedType {
    pub name: String,
    /// The package, then modules.
    pub module: Vec<String>,
    /// Below the workspace's root.
    pub file: PathBuf,
}

/// A source file, which is a module.
struct Source {
    module: Vec<String>,
    file: PathBuf,
    imports: Vec<Vec<String>>,
    /// `pub use`: the name here, the path it stands for.
    exports: BTreeMap<String, Vec<String>>,
    types: Vec<NamedType>,
    /// Modules in files of their own that tests alone have.
    test_modules: Vec<Vec<String>>,
}

/// All source files of the workspace's packages.
pub struct Workspace {
    sources: Vec<Source>,
    by_module: BTreeMap<Vec<String>, usize>,
}

impl Workspace {
    /// Of texts with their files' names and modules.
    pub fn of_texts<const N: usize>(texts: [(&str, &[&str], &str); N]) -> Self {
        let parse = |(file, module, text): (&str, &[&str], &str)| {
            parse_text(text, file.into(), module.iter().map(|name| (*name).to_owned()).collect())
        };
        Workspace::new(texts.into_iter().map(parse).collect())
    }

    fn new(sources: Vec<Source>) -> Self {
        let by_module = sources.iter().enumerate().map(|(i, source)| (source.module.clone(), i)).collect();
        Workspace { sources, by_module }
    }

    /// Parses every file.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let packages = [
            ("thermocline_shaders", "shaders"),
            ("thermocline_engine", "engine"),
            ("thermocline", "app"),
            ("thermocline_tests", "tests"),
        ];
        let mut sources = Vec::new();
        for (package, folder) in packages {
            let src = Path::new(folder).join("src");
            collect(root, &src, &[package.to_owned()], &mut sources);
        }
        Workspace::new(sources)
    }

    /// Every import of a path of the workspace.
    pub fn imports(&self) -> impl Iterator<Item = Import> {
        self.sources.iter().flat_map(|source| {
            let import =
                |to: &Vec<String>| Import { from: source.module.clone(), to: to.clone(), file: source.file.clone() };
            source.imports.iter().map(import)
        })
    }

    /// Every type that is not private, without those of tests.
    pub fn types(&self) -> impl Iterator<Item = &NamedType> {
        let of_tests: Vec<&Vec<String>> = self.sources.iter().flat_map(|source| &source.test_modules).collect();
        let kept = move |it: &&NamedType| !of_tests.iter().any(|module| it.module.starts_with(module));
        self.sources.iter().flat_map(|source| &source.types).filter(kept)
    }

    /// Per file the files that define what it imports, and the files' names.
    pub fn files(&self) -> (Vec<Vec<usize>>, Vec<String>) {
        let graph = self.sources.iter().enumerate().map(|(i, source)| {
            let mut to: Vec<usize> = source.imports.iter().filter_map(|path| self.defining(path, 8)).collect();
            to.sort_unstable();
            to.dedup();
            to.retain(|to| *to != i);
            to
        });
        (graph.collect(), self.sources.iter().map(|source| source.file.display().to_string()).collect())
    }

    /// The folder that a file lies in.
    pub fn folder(&self, file: usize) -> &Path {
        self.sources[file].file.parent().unwrap()
    }

    /// The file that defines the item at `path`, behind at most `hops` re-exports.
    fn defining(&self, path: &[String], hops: usize) -> Option<usize> {
        let depth = (1..=path.len()).rev().find(|depth| self.by_module.contains_key(&path[..*depth]))?;
        let at = self.by_module[&path[..depth]];
        let Some(name) = path.get(depth) else { return Some(at) };
        match self.sources[at].exports.get(name) {
            Some(export) if hops > 0 => {
                let path: Vec<String> = export.iter().chain(&path[depth + 1..]).cloned().collect();
                self.defining(&path, hops - 1)
            }
            _ => Some(at),
        }
    }
}

/// Parses the sources below `folder`, which are the modules below `module`.
fn collect(root: &Path, folder: &Path, module: &[String], sources: &mut Vec<Source>) {
    let mut entries: Vec<_> = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        let stem = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        let below = folder.join(entry.file_name().unwrap());
        let child: Vec<String> = module.iter().cloned().chain([stem.clone()]).collect();
        if entry.is_dir() {
            collect(root, &below, &child, sources);
        } else if entry.extension().is_some_and(|extension| extension == "rs")
            && !["tests", "testing", "timing"].contains(&stem.as_str())
        {
            let module = if ["mod", "lib", "main"].contains(&stem.as_str()) { module.to_vec() } else { child };
            sources.push(parse(root, below, module));
        }
    }
}

fn parse(root: &Path, file: PathBuf, module: Vec<String>) -> Source {
    let text = fs::read_to_string(root.join(&file)).unwrap();
    parse_text(&text, file, module)
}

fn parse_text(text: &str, file: PathBuf, module: Vec<String>) -> Source {
    let parsed: File = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let imports = Vec::new();
    let (exports, types, test_modules) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut reader =
        Reader { source: Source { module: module.clone(), file, imports, exports, types, test_modules }, module };
    reader.visit_file(&parsed);
    reader.source
}

/// Collects the paths that a file names, and the types that it defines.
struct Reader {
    source: Source,
    /// The module that is being read: the file's, or one within it.
    module: Vec<String>,
}

impl Reader {
    /// `path` from the package down; `None` for a path outside the workspace or a local name.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        if first == "crate" {
            return Some([&self.module[..1], &path[1..]].concat());
        }
        if first.starts_with("thermocline") {
            return Some(path.to_vec());
        }
        let up = path.iter().take_while(|name| *name == "super").count();
        if up > 0 {
            return Some([&self.module[..self.module.len().checked_sub(up)?], &path[up..]].concat());
        }
        (first == "self").then(|| [&self.module[..], &path[1..]].concat())
    }

    fn import(&mut self, path: &[String]) {
        self.source.imports.extend(self.absolute(path));
    }

    /// Paths within a macro's tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if path.is_empty() || colons == 2 => {
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() && colons < 2 => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.import_if_rooted(&path);
            (path, colons) = (Vec::new(), 0);
        }
        self.import_if_rooted(&path);
    }

    fn import_if_rooted(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.import(path);
        }
    }

    fn leaves(&mut self, prefix: &mut Vec<String>, tree: &UseTree, public: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.leaves(prefix, &path.tree, public);
                prefix.pop();
            }
            UseTree::Name(name) if name.ident == "self" => self.leaf(prefix, prefix.last().cloned(), public),
            UseTree::Name(name) => {
                let path = [&prefix[..], &[name.ident.to_string()]].concat();
                self.leaf(&path, path.last().cloned(), public);
            }
            UseTree::Rename(rename) => {
                let path = [&prefix[..], &[rename.ident.to_string()]].concat();
                self.leaf(&path, Some(rename.rename.to_string()), public);
            }
            UseTree::Glob(_) => self.import(prefix),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.leaves(prefix, tree, public)),
        }
    }

    /// An imported path and the name it has here.
    fn leaf(&mut self, path: &[String], name: Option<String>, public: bool) {
        // `pub use child::Item` in a `mod.rs` is no import of the item, but tells where it is.
        if public && let Some(name) = name {
            let absolute = self.absolute(path).unwrap_or_else(|| [&self.module[..], path].concat());
            self.source.exports.insert(name, absolute);
        } else {
            self.import(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, of_type): (&[Attribute], _) = match item {
            Item::Mod(item) => (&item.attrs, None),
            Item::Use(item) => (&item.attrs, None),
            Item::Fn(item) => (&item.attrs, None),
            Item::Impl(item) => (&item.attrs, None),
            Item::Struct(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Enum(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Union(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Trait(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Type(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            _ => (&[], None),
        };
        if attributes.iter().any(for_tests) {
            if let Item::Mod(item) = item {
                self.source.test_modules.push([&self.module[..], &[item.ident.to_string()]].concat());
            }
            return;
        }
        if let Some((visibility, name)) = of_type
            && !matches!(visibility, Visibility::Inherited)
        {
            let (name, module, file) = (name.to_string(), self.module.clone(), self.source.file.clone());
            self.source.types.push(NamedType { name, module, file });
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        self.leaves(&mut Vec::new(), &item.tree, public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.import_if_rooted(&names);
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        self.tokens(of.tokens.clone());
    }
}

/// `#[cfg(test)]`, `#[test]`
fn for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("test")
        || (attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|argument| argument.is_ident("test")))
}
