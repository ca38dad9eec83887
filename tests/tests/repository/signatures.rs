//! Parameters of functions. An anonymous tuple does not name its parts or their relation, so a
//! function takes a named struct or more parameters. Closures may take tuples, because their caller
//! determines the parameters.

use std::fs;

use syn::{
    FnArg, Ident, ImplItemFn, ItemFn, Pat, PatType, Signature, TraitItemFn, Type,
    visit::{self, Visit},
};

use super::sources::{root, sources};

/// Functions with a tuple parameter, and the parameter's index from 0.
#[derive(Default)]
struct TupleParameters(Vec<(Ident, usize)>);

impl TupleParameters {
    /// Returns the functions with a tuple parameter in a source.
    fn of(text: &str) -> syn::Result<Vec<(Ident, usize)>> {
        let mut found = TupleParameters::default();
        found.visit_file(&syn::parse_file(text)?);
        Ok(found.0)
    }

    fn add(&mut self, signature: &Signature) {
        let tuple = |(_, input): &(usize, &FnArg)| match input {
            FnArg::Typed(PatType { pat, ty, .. }) => matches!(**pat, Pat::Tuple(_)) || is_tuple(ty),
            FnArg::Receiver(_) => false,
        };
        let found = signature.inputs.iter().enumerate().filter(tuple);
        self.0.extend(found.map(|(at, _)| (signature.ident.clone(), at)));
    }
}

/// Returns true for a tuple or a reference to a tuple.
fn is_tuple(ty: &Type) -> bool {
    match ty {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Paren(paren) => is_tuple(&paren.elem),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for TupleParameters {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.add(&item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.add(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

#[test]
fn functions_take_no_anonymous_tuples() {
    let mut places = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let found = TupleParameters::of(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        places.extend(found.into_iter().map(|(name, at)| format!("{file}: parameter {at} of {name}")));
    }
    places.sort();
    assert!(places.is_empty(), "tuples for parameters: {places:#?}");
}

#[test]
fn planted_tuples_are_found_wherever_a_function_is() {
    let found = |text: &str| -> Vec<String> {
        TupleParameters::of(text).unwrap().iter().map(|(name, at)| format!("{name} {at}")).collect()
    };
    assert_eq!(found("fn f(x: u8, (a, b): (usize, bool)) {}"), ["f 1"]);
    assert_eq!(found("fn f(shape: (usize, usize), both: &mut (u8, u8)) {}"), ["f 0", "f 1"]);
    assert_eq!(found("type Pair = (u8, u8); fn f((a, b): Pair) {}"), ["f 0"]);
    assert_eq!(found("impl A { fn f(&self, (a, b): (u8, u8)) {} }"), ["f 1"]);
    assert_eq!(found("trait A { fn f(&self, pair: (u8, u8)); }"), ["f 1"]);
    assert_eq!(found("fn f() { fn g((a, b): (u8, u8)) {} }"), ["g 0"]);
    assert_eq!(found("mod tests { fn f(pair: (u8, u8)) {} }"), ["f 0"]);
    let fine = "fn f(list: &[(u8, u8)], some: Option<(u8, u8)>, unit: (), call: impl Fn((u8, u8))) {
        list.iter().for_each(|(a, b): &(u8, u8)| ());
    }";
    assert_eq!(found(fine), [""; 0]);
}
