//! The menu behind the model's name: the recently used models, one click each, and a link to all
//! others.

use std::path::Path;

use egui::{Button, Ui};

use crate::{
    command::{Command, Page},
    shell::Shell,
};
use thermocline_host::{engine_handle::ModelState, library::ModelId};

/// Maximum number of models in the menu.
const MOST: usize = 8;

/// Maximum width of the menu, in points.
const WIDTH: f32 = 420.0;

/// Shows the menu above `page`. The model of `state` is marked.
pub fn show(ui: &mut Ui, shell: &mut Shell, state: &ModelState, page: Page) {
    let open = state.model().map(|model| model.key());
    ui.set_max_width(WIDTH);
    let recent: Vec<String> = shell.settings.recent.iter().take(MOST).cloned().collect();
    for (key, name) in recent.iter().zip(names(&recent)) {
        let is_open = open.as_ref() == Some(key);
        if ui.add(Button::selectable(is_open, name).truncate()).on_hover_text(key).clicked() {
            if !is_open || matches!(state, ModelState::Failed { .. }) {
                shell.queue_command(Command::OpenModel(ModelId::from_key(key)));
            }
            ui.close();
        }
    }
    if !recent.is_empty() {
        ui.separator();
    }
    if ui.button("All models …").clicked() {
        if page != Page::Models {
            shell.queue_command(Command::Show(Page::Models));
        }
        ui.close();
    }
}

/// Names of the models with these keys. Models with equal names also show their folder.
fn names(keys: &[String]) -> Vec<String> {
    let short: Vec<String> = keys.iter().map(|key| ModelId::from_key(key).to_string()).collect();
    let long = |key: &String, name: &String| {
        let folder = Path::new(key).parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or_else(|| key.clone(), |folder| format!("{name} in {}", folder.display()))
    };
    let is_alone = |name: &String| short.iter().filter(|other| *other == name).count() == 1;
    keys.iter().zip(&short).map(|(key, name)| if is_alone(name) { name.clone() } else { long(key, name) }).collect()
}

#[cfg(test)]
mod tests {
    use egui_kittest::kittest::Queryable;

    use super::*;
    use crate::testing::TestWindow;

    #[test]
    fn models_that_are_called_alike_have_their_folder() {
        let keys = ["/a/small.gguf", "/b/small.gguf", "/b/large.gguf", "builtin:storyteller"].map(str::to_owned);
        assert_eq!(names(&keys), ["small in /a", "small in /b", "large", "Storyteller"]);
    }

    #[test]
    fn menu_opens_models_used_lately_and_the_page_of_all() {
        let mut stage = TestWindow::opened_with([1440.0, 900.0], |_, settings| {
            settings.add_recent("/gone/model.gguf");
            settings.add_recent(&ModelId::Builtin.key());
        });
        let menu = |stage: &mut TestWindow| {
            let buttons = stage.it.get_all_by_role_and_label(egui::accesskit::Role::Button, "Storyteller");
            buttons.into_iter().next().unwrap().click();
            stage.step();
            assert!(stage.shows("All models …"), "{:?}", stage.texts());
        };
        for _ in 0..2 {
            menu(&mut stage);
            stage.click("All models …");
            assert_eq!(stage.it.state().page, Page::Models, "it is not left again");
        }
        menu(&mut stage);
        stage.click("model");
        let failed = |window: &mut crate::Window| {
            let state = window.shell.engine_handle.state();
            matches!(state, ModelState::Failed { model, .. } if model == ModelId::from_key("/gone/model.gguf"))
        };
        stage.until("the other model", failed);
    }
}
