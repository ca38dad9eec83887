//! The part of the window that has the keyboard, and with it the right to Escape; keys as they were
//! pressed.

use egui::{Context, Event, Id, Key, LayerId, Modifiers};

/// True if `key` was pressed while exactly these modifiers were held. What is held at the end of a
/// frame says nothing about that: in a slow window Ctrl may be pressed and let go within one frame.
pub fn pressed(ctx: &Context, modifiers: Modifiers, key: Key) -> bool {
    let is_pressed = |event: &Event| match event {
        Event::Key { key: pressed, pressed: true, modifiers: held, .. } => {
            *pressed == key && held.matches_exact(modifiers)
        }
        _ => false,
    };
    ctx.input(|input| input.events.iter().any(is_pressed))
}

/// True if a menu or an overlay has it.
fn is_above(ctx: &Context) -> bool {
    ctx.memory(|memory| memory.top_modal_layer().is_some()) || egui::Popup::is_any_open(ctx)
}

/// True if a menu, an overlay or a field in which one writes has it, but for the fields `own`: then Escape leaves that.
pub fn is_taken(ctx: &Context, own: &[Id]) -> bool {
    let focused = ctx.memory(|memory| memory.focused());
    is_above(ctx) || (ctx.text_edit_focused() && !focused.is_some_and(|id| own.contains(&id)))
}

/// True if a field in which one writes has it that lies on `layer`, with nothing above.
pub fn is_written_on(ctx: &Context, layer: LayerId) -> bool {
    let focused = ctx.memory(|memory| memory.focused()).and_then(|id| ctx.read_response(id));
    !is_above(ctx) && ctx.text_edit_focused() && focused.is_some_and(|field| field.layer_id == layer)
}
