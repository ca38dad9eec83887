//! The names of types: one name means one type in a package. Private types are their module's own affair; types that macros make
//! are not seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::sources::Workspace;

/// A package and a name, and the files of the modules that define a type of that name.
type Files<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Path>>;

/// A module and its file.
type Module<'a> = (&'a [String], &'a Path);

/// Names that more than one module of a package gives to a type. Two types of one module are one, for different systems.
fn shared_names(workspace: &Workspace) -> Files<'_> {
    let mut modules: BTreeMap<(&str, &str), BTreeSet<Module<'_>>> = BTreeMap::new();
    for it in workspace.types() {
        modules.entry((&it.module[0], &it.name)).or_default().insert((&it.module, &it.file));
    }
    modules.retain(|_, modules| modules.len() > 1);
    modules.into_iter().map(|(name, modules)| (name, modules.into_iter().map(|(_, file)| file).collect())).collect()
}

#[test]
fn a_name_means_one_type_in_a_package() {
    let workspace = Workspace::read();
    let types = workspace.types().count();
    assert!(types > 500, "only {types} types found");
    let shared = shared_names(&workspace);
    assert!(shared.is_empty(), "types of the same name: {shared:#?}");
}

#[test]
fn second_types_of_a_name_are_found() {
    let workspace = Workspace::of_texts([
        (
            "engine/src/gpu/plan.rs",
            &["engine", "gpu", "plan"],
            "pub(super) struct Plan; struct Private; pub type Bytes = u64;",
        ),
        (
            "engine/src/synth.rs",
            &["engine", "synth"],
            "mod within { pub enum Plan {} } struct Private; #[cfg(test)] mod checks;",
        ),
        ("engine/src/synth/checks.rs", &["engine", "synth", "checks"], "pub struct Plan; pub struct Bytes;"),
        (
            "engine/src/files.rs",
            &["engine", "files"],
            "#[cfg(unix)] pub struct Lock; #[cfg(not(unix))] pub struct Lock;",
        ),
        ("engine/src/error.rs", &["engine", "error"], "#[cfg(test)] mod tests { pub trait Lock {} }"),
        ("app/src/plan.rs", &["app", "plan"], "pub trait Plan {}"),
    ]);
    let both = vec![Path::new("engine/src/gpu/plan.rs"), Path::new("engine/src/synth.rs")];
    assert_eq!(shared_names(&workspace), Files::from([(("engine", "Plan"), both)]));
}
