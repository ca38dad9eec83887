//! Names of types. A name means one type in the whole workspace, public or private. The test does
//! not see types that macros define.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use syn::{Attribute, Ident, Item};

use super::sources::{root, sources};

/// The modules that define a type of each name.
type Modules = BTreeMap<String, BTreeSet<String>>;

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("cfg") && it.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// Returns the attributes and the name of an item that defines a type.
fn defined(item: &Item) -> Option<(&[Attribute], &Ident)> {
    match item {
        Item::Enum(it) => Some((&it.attrs, &it.ident)),
        Item::Struct(it) => Some((&it.attrs, &it.ident)),
        Item::Trait(it) => Some((&it.attrs, &it.ident)),
        Item::Type(it) => Some((&it.attrs, &it.ident)),
        Item::Union(it) => Some((&it.attrs, &it.ident)),
        _ => None,
    }
}

/// Adds the types of a module. Two types of the same name in one module count as one: they are
/// versions for different systems.
fn add(modules: &mut Modules, module: &str, items: &[Item]) {
    for item in items {
        match item {
            Item::Mod(inner) if !is_for_tests(&inner.attrs) => {
                let items = inner.content.as_ref().map_or(&[][..], |(_, items)| items);
                add(modules, &format!("{module} {}", inner.ident), items);
            }
            _ => {
                let Some((attributes, name)) = defined(item) else { continue };
                if !is_for_tests(attributes) {
                    modules.entry(name.to_string()).or_default().insert(module.to_owned());
                }
            }
        }
    }
}

/// Returns names that more than one module defines.
fn shared(mut modules: Modules) -> Modules {
    modules.retain(|_, modules| modules.len() > 1);
    modules
}

#[test]
fn a_name_means_one_type_in_the_workspace() {
    let mut modules = Modules::new();
    for path in sources() {
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        add(&mut modules, &path.strip_prefix(root()).unwrap().display().to_string(), &file.items);
    }
    assert!(modules.len() > 1500, "only {} types found", modules.len());
    let shared = shared(modules);
    assert!(shared.is_empty(), "types of the same name: {shared:#?}");
}

#[test]
fn second_types_of_a_name_are_found() {
    let mut modules = Modules::new();
    for (path, text) in [
        ("engine/gpu/src/plan.rs", "pub(super) struct Plan; struct Private; pub type Bytes = u64;"),
        ("engine/model/src/synth.rs", "mod within { pub enum Plan {} } #[cfg(test)] pub struct Bytes;"),
        ("engine/base/src/files.rs", "#[cfg(unix)] pub struct Lock; #[cfg(not(unix))] pub struct Lock;"),
        ("engine/base/src/error.rs", "#[cfg(test)] mod tests { pub trait Lock {} }"),
        ("app/src/private.rs", "trait Private {}"),
    ] {
        add(&mut modules, path, &syn::parse_file(text).unwrap().items);
    }
    let found = [
        ("Plan", ["engine/gpu/src/plan.rs", "engine/model/src/synth.rs within"]),
        ("Private", ["app/src/private.rs", "engine/gpu/src/plan.rs"]),
    ];
    let found = found.map(|(name, modules)| (name.to_owned(), modules.map(str::to_owned).into()));
    assert_eq!(shared(modules), Modules::from(found));
}
