//! The names of types: one name means one type in the engine, in the app and in the shaders. Private types are their module's own
//! affair; types that macros make are not seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use syn::{Attribute, Ident, Item, Visibility};

use super::sources::{root, sources};

/// A part of the house and a name, and the modules that define a type of that name.
type Modules = BTreeMap<(String, String), BTreeSet<String>>;

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("cfg") && it.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// The attributes, visibility and name of an item that defines a type.
fn defined(item: &Item) -> Option<(&[Attribute], &Visibility, &Ident)> {
    match item {
        Item::Enum(it) => Some((&it.attrs, &it.vis, &it.ident)),
        Item::Struct(it) => Some((&it.attrs, &it.vis, &it.ident)),
        Item::Trait(it) => Some((&it.attrs, &it.vis, &it.ident)),
        Item::Type(it) => Some((&it.attrs, &it.vis, &it.ident)),
        Item::Union(it) => Some((&it.attrs, &it.vis, &it.ident)),
        _ => None,
    }
}

/// Adds the types of a module. Two types of one module are one, for different systems.
fn add(modules: &mut Modules, module: &str, items: &[Item]) {
    let part = module.split('/').next().unwrap();
    for item in items {
        match item {
            Item::Mod(inner) if !is_for_tests(&inner.attrs) => {
                let items = inner.content.as_ref().map_or(&[][..], |(_, items)| items);
                add(modules, &format!("{module} {}", inner.ident), items);
            }
            _ => {
                let Some((attributes, visibility, name)) = defined(item) else { continue };
                if !is_for_tests(attributes) && !matches!(visibility, Visibility::Inherited) {
                    modules.entry((part.to_owned(), name.to_string())).or_default().insert(module.to_owned());
                }
            }
        }
    }
}

/// Names that more than one module of a part gives to a type.
fn shared(mut modules: Modules) -> Modules {
    modules.retain(|_, modules| modules.len() > 1);
    modules
}

#[test]
fn a_name_means_one_type_in_a_part_of_the_house() {
    let mut modules = Modules::new();
    for path in sources() {
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        add(&mut modules, &path.strip_prefix(root()).unwrap().display().to_string(), &file.items);
    }
    assert!(modules.len() > 500, "only {} types found", modules.len());
    let shared = shared(modules);
    assert!(shared.is_empty(), "types of the same name: {shared:#?}");
}

#[test]
fn second_types_of_a_name_are_found() {
    let mut modules = Modules::new();
    for (path, text) in [
        ("engine/gpu/src/plan.rs", "pub(super) struct Plan; struct Private; pub type Bytes = u64;"),
        ("engine/model/src/synth.rs", "mod within { pub enum Plan {} } struct Private; #[cfg(test)] pub struct Bytes;"),
        ("engine/base/src/files.rs", "#[cfg(unix)] pub struct Lock; #[cfg(not(unix))] pub struct Lock;"),
        ("engine/base/src/error.rs", "#[cfg(test)] mod tests { pub trait Lock {} }"),
        ("app/src/plan.rs", "pub trait Plan {}"),
    ] {
        add(&mut modules, path, &syn::parse_file(text).unwrap().items);
    }
    let both = ["engine/gpu/src/plan.rs", "engine/model/src/synth.rs within"].map(str::to_owned);
    assert_eq!(shared(modules), Modules::from([(("engine".to_owned(), "Plan".to_owned()), both.into())]));
}
