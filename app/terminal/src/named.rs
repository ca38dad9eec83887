//! Options whose values have names.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A parser of these names, which the help lists.
pub fn named<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}
