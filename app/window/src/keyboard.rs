//! Tells which part of the window has the keyboard focus and therefore handles Escape. Reads keys
//! as they were pressed.

use egui::{Context, Event, Id, Key, LayerId, Modifiers};

/// True if `key` was pressed while exactly these modifiers were held. The modifiers at the end of a
/// frame do not show this: in a slow window Ctrl may be pressed and released within one frame.
pub fn pressed(ctx: &Context, modifiers: Modifiers, key: Key) -> bool {
    let is_pressed = |event: &Event| match event {
        Event::Key { key: pressed, pressed: true, modifiers: held, .. } => {
            *pressed == key && held.matches_exact(modifiers)
        }
        _ => false,
    };
    ctx.input(|input| input.events.iter().any(is_pressed))
}

/// True if a menu or an overlay has the keyboard focus.
fn is_above(ctx: &Context) -> bool {
    ctx.memory(|memory| memory.top_modal_layer().is_some()) || egui::Popup::is_any_open(ctx)
}

/// True if a menu, an overlay or a text field other than `own` has the keyboard focus. Escape then
/// closes or leaves it.
pub fn is_taken(ctx: &Context, own: &[Id]) -> bool {
    let focused = ctx.memory(|memory| memory.focused());
    is_above(ctx) || (ctx.text_edit_focused() && !focused.is_some_and(|id| own.contains(&id)))
}

/// True if a text field on `layer` has the keyboard focus and no menu or overlay is above it.
pub fn is_written_on(ctx: &Context, layer: LayerId) -> bool {
    let focused = ctx.memory(|memory| memory.focused()).and_then(|id| ctx.read_response(id));
    !is_above(ctx) && ctx.text_edit_focused() && focused.is_some_and(|field| field.layer_id == layer)
}
