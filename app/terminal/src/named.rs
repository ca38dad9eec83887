//! Options whose values have names.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Parses these names, which the help lists.
pub fn named<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// Parses these values by their names, which the help lists.
pub fn by_name<T: Clone + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.each_ref().map(|(name, _)| *name));
    names.map(move |name| {
        let at = values.iter().position(|(known, _)| *known == name);
        // The parser has accepted the name, so the position exists.
        values[at.unwrap_or(0)].1.clone()
    })
}
