//! Windows that are too small for all columns: nothing important is covered.

use egui::{Key, Rect};
use egui_kittest::kittest::Queryable;

use crate::testing::TestWindow;

/// A usual small window, and one without room for any side column.
const SIZES: [[f32; 2]; 2] = [[900.0, 600.0], [600.0, 900.0]];

const SWITCHES: [&str; 2] = ["Show or hide the chats", "Show or hide the neurons"];

#[test]
fn column_over_the_page_leaves_the_line_above_free() {
    for size in SIZES {
        let mut stage = TestWindow::opened(size);
        for (switch, key, first) in [(SWITCHES[0], Key::B, "New chat"), (SWITCHES[1], Key::J, "Search neurons")] {
            if stage.shows(first) {
                // The chats have their own place.
                continue;
            }
            stage.ctrl(key);
            let column = stage.control(first).rect();
            let line = ["Storyteller", "CPU", "exact", "Speed", SWITCHES[0], SWITCHES[1]];
            for part in line.map(|name| stage.control(name).rect()) {
                assert!(part.bottom() < column.top(), "{size:?}: {part} above {column}");
            }
            // The topmost control receives the click.
            stage.click("exact");
            assert!(stage.shows("Adapt to the current text"), "{size:?}: the menu of modes is behind {first}");
            stage.press(Key::Escape);
            stage.click(switch);
            assert!(!stage.shows(first), "{size:?}: {switch} does not close the column");
        }
    }
}

#[test]
fn neurons_take_the_place_of_the_chats_rather_than_hide_words() {
    let mut stage = TestWindow::opened(SIZES[0]);
    stage.ask("Tell me a story about a ball.");
    stage.ctrl(Key::J);
    stage.it.run_steps(2);
    assert!(stage.shows("Search neurons") && !stage.shows("Search chats"));
    let (page, column) = (stage.control("Message").rect(), stage.control("Search neurons").rect());
    assert!(page.right() < column.left() && page.width() > 300.0, "the page at {page}, neurons at {column}");
    // It behaves like a column of a wide window: Escape belongs to the answer, and opening a chat
    // leaves the column open.
    stage.press(Key::Escape);
    stage.ctrl(Key::N);
    assert!(stage.shows("Search neurons"));
    stage.ctrl(Key::B);
    stage.it.run_steps(2);
    assert!(stage.shows("Search chats") && !stage.shows("Search neurons"));
    stage.ctrl(Key::J);
    stage.ctrl(Key::J);
    assert!(stage.shows("Search chats") && !stage.shows("Search neurons"));
}

#[test]
fn notice_of_a_change_that_is_not_kept_covers_nothing() {
    for size in SIZES {
        let mut stage = TestWindow::opened(size);
        stage.ask("Tell me a story about a ball.");
        stage.click("Edit message");
        stage.types(&" and a fox".repeat(12));
        stage.press(Key::Escape);
        let window = Rect::from_min_size(egui::Pos2::ZERO, size.into());
        let notice = stage.it.get_by_label_contains("Your change is not saved yet").rect();
        assert!(window.contains_rect(notice), "{notice} in {window}");
        for name in ["Changed message", "Send again", "Cancel", "Message", "Copy answer"] {
            let control = stage.control(name).rect();
            assert!(!control.intersects(notice), "{size:?}: {name} at {control}, the notice at {notice}");
        }
        assert!(stage.shell().toasts.is_empty(), "nothing lies over the page");
        stage.click("Cancel");
        assert!(!stage.shows("Your change is not saved yet"));
    }
}
