//! The include step: `#include "file"` (each file once), and `#if feature` / `#else` / `#endif`.
//! `weights.wgsl` stands for the text of the requested [`WeightType`], which is on the type's page.
//! `params.wgsl` stands for the kernel's parameters, a WGSL struct with the fields of the Rust
//! struct ([`Params`](crate::params::Params)) beside the kernel's text.

use std::collections::HashSet;

use crate::{Tier, WeightType, params::ParamField};

/// Files that kernels include, and their names.
const INCLUDES: &[(&str, &str)] = &[
    ("activation.wgsl", include_str!("activation.wgsl")),
    ("attention.wgsl", include_str!("attention.wgsl")),
    ("builtins.wgsl", include_str!("builtins.wgsl")),
    ("code_book.wgsl", include_str!("code_book.wgsl")),
    ("code_book_iq1.wgsl", include_str!("code_book_iq1.wgsl")),
    ("e2m1.wgsl", include_str!("e2m1.wgsl")),
    ("coop_tiles.wgsl", include_str!("coop_tiles.wgsl")),
    ("element.wgsl", include_str!("element.wgsl")),
    ("expert.wgsl", include_str!("expert.wgsl")),
    ("few_tokens.wgsl", include_str!("few_tokens.wgsl")),
    ("fifth_bits.wgsl", include_str!("fifth_bits.wgsl")),
    ("head.wgsl", include_str!("head.wgsl")),
    ("iq4_values.wgsl", include_str!("iq4_values.wgsl")),
    ("lane.wgsl", include_str!("lane.wgsl")),
    ("load8.wgsl", include_str!("load8.wgsl")),
    ("modalities.wgsl", include_str!("modalities.wgsl")),
    ("nibbles.wgsl", include_str!("nibbles.wgsl")),
    ("order.wgsl", include_str!("order.wgsl")),
    ("pairs.wgsl", include_str!("pairs.wgsl")),
    ("place.wgsl", include_str!("place.wgsl")),
    ("product.wgsl", include_str!("product.wgsl")),
    ("reduce.wgsl", include_str!("reduce.wgsl")),
    ("rotation.wgsl", include_str!("rotation.wgsl")),
    ("rows.wgsl", include_str!("rows.wgsl")),
    ("scan.wgsl", include_str!("scan.wgsl")),
    ("signs.wgsl", include_str!("signs.wgsl")),
    ("slices.wgsl", include_str!("slices.wgsl")),
    ("softplus.wgsl", include_str!("softplus.wgsl")),
    ("sums.wgsl", include_str!("sums.wgsl")),
    ("super_block.wgsl", include_str!("super_block.wgsl")),
    ("super_scales.wgsl", include_str!("super_scales.wgsl")),
    ("ternary.wgsl", include_str!("ternary.wgsl")),
    ("ternary_pairs.wgsl", include_str!("ternary_pairs.wgsl")),
    ("tile.wgsl", include_str!("tile.wgsl")),
    ("token_positions.wgsl", include_str!("token_positions.wgsl")),
];

/// State of the expansion of one text.
struct IncludeExpansion<'a> {
    params: &'a [ParamField],
    tier: Tier,
    weights: Option<WeightType>,
    seen: HashSet<String>,
    /// Collected `enable` directives. They must precede every declaration of the text.
    enables: String,
    body: String,
}

/// Expands the includes and conditions of `text` for a kernel with `params`, for `tier` and
/// `weights`. The error names the wrong line, its file and the reason.
pub(crate) fn expand(
    file: &str,
    text: &str,
    params: &[ParamField],
    tier: Tier,
    weights: Option<WeightType>,
) -> Result<String, String> {
    let (seen, enables, body) = (HashSet::new(), String::new(), String::new());
    let mut target = IncludeExpansion { params, tier, weights, seen, enables, body };
    target.add(file, text)?;
    Ok(target.enables + &target.body)
}

impl IncludeExpansion<'_> {
    fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        // For each open `#if`: whether its current branch is kept, and whether an `#else` was seen.
        let mut conditions: Vec<(bool, bool)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let fail = |what: &str| Err(format!("{file}:{}: {what}: {line}", number + 1));
            let mut words = line.split_whitespace();
            let (directive, argument) = (words.next().unwrap_or(""), words.next());
            let kept = conditions.iter().all(|(kept, _)| *kept);
            match directive {
                "#if" => match argument.and_then(|name| self.tier.has(name)) {
                    Some(on) => conditions.push((on, false)),
                    None => return fail("unknown feature"),
                },
                "#else" => match conditions.last_mut() {
                    Some((kept, seen @ false)) => (*kept, *seen) = (!*kept, true),
                    _ => return fail("#else without #if"),
                },
                "#endif" if conditions.is_empty() => return fail("#endif without #if"),
                "#endif" => drop(conditions.pop()),
                "#include" if kept => {
                    let name = argument.unwrap_or("").trim_matches('"');
                    if !self.seen.insert(name.to_owned()) {
                        continue;
                    }
                    match (self.weights, name) {
                        (_, "params.wgsl") => self.add_params(),
                        (Some(ty), "weights.wgsl") => {
                            self.body.push_str(&format!("const PARTS: u32 = {}u;\n", ty.parts()));
                            self.add(&format!("{}.wgsl", ty.name().to_lowercase()), ty.device().wgsl)?;
                        }
                        _ => match INCLUDES.iter().find(|(known, _)| *known == name) {
                            Some((_, included)) => self.add(name, included)?,
                            None => return fail("unknown include"),
                        },
                    }
                }
                "#include" => {}
                other if other.starts_with('#') => return fail("unknown directive"),
                "enable" if kept => {
                    self.enables.push_str(line);
                    self.enables.push('\n');
                }
                _ if kept => {
                    self.body.push_str(line);
                    self.body.push('\n');
                }
                _ => {}
            }
        }
        if conditions.is_empty() { Ok(()) } else { Err(format!("{file}: #if without #endif")) }
    }

    /// Adds the struct of the kernel's parameters, and their variable.
    fn add_params(&mut self) {
        let fields = self.params.iter().map(|field| format!("    {}: {},\n", field.name, field.ty));
        self.body += &format!("struct Params {{\n{}}}\nvar<immediate> params: Params;\n", fields.collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_nest_and_choose_by_tier() {
        let text = "a\n#if f16\nb\n#if subgroups\nc\n#else\nd\n#endif\n#else\ne\n#endif\nf\n";
        let of = |subgroups, f16| expand("t", text, &[], Tier { subgroups, f16 }, None).unwrap();
        assert_eq!(of(false, false), "a\ne\nf\n");
        assert_eq!(of(false, true), "a\nb\nd\nf\n");
        assert_eq!(of(true, true), "a\nb\nc\nf\n");
    }

    #[test]
    fn includes_expand_once_and_enables_come_first() {
        let text = "#include \"lane.wgsl\"\n#include \"lane.wgsl\"\n#if f16\nenable f16;\n#endif\nend\n";
        let out = expand("t", text, &[], Tier { subgroups: false, f16: true }, None).unwrap();
        assert!(out.starts_with("enable f16;\n"));
        assert_eq!(out.matches("fn lane_of").count(), 1);
    }

    #[test]
    fn preprocessor_errors_name_file_and_line() {
        let portable = |text| expand("k.wgsl", text, &[], Tier::PORTABLE, None).unwrap_err();
        assert_eq!(portable("x\n#if speed\n"), "k.wgsl:2: unknown feature: #if speed");
        assert_eq!(portable("#include \"no.wgsl\""), "k.wgsl:1: unknown include: #include \"no.wgsl\"");
        assert_eq!(portable("#else\n"), "k.wgsl:1: #else without #if: #else");
        assert_eq!(portable("#if f16\n#else\n#else\n#endif"), "k.wgsl:3: #else without #if: #else");
        assert_eq!(portable("#endif"), "k.wgsl:1: #endif without #if: #endif");
        assert_eq!(portable("#if f16\n"), "k.wgsl: #if without #endif");
        assert_eq!(portable("#define x"), "k.wgsl:1: unknown directive: #define x");
    }
}
