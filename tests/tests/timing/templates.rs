//! Time of mutated chat templates.

use thermocline_tests::{
    fuzzed::template,
    mutations::{hold, templates},
};

use super::alone;

#[test]
fn mutated_chat_templates_render_or_fail_soon() {
    let _alone = alone();
    hold(&templates(), |bytes| template::check(&String::from_utf8_lossy(bytes)));
}
