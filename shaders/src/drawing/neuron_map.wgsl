// The neuron map: the bytes of a few neurons become a dot, and the dot gets a colour.
//
// Every layer is a band of `lines` lines of `columns` dots. Neurons fill one column from top to
// bottom, then the next. A dot is one neuron if there are enough dots, else a few neighbours in the
// layer's order. Their bytes are folded into a level from 0 to 255, which `colours` maps to a
// colour. Texels are loaded, never filtered, so that adapters without storage buffers in fragment
// shaders can draw the map, too.

// Folds of a dot's neurons, with the same numbers as Rust's `Fold`.
const FRACTION = 0u;
const PLACE = 1u;
const MOST = 2u;
const PREDICTION = 3u;
const UNION = 4u;
const MEAN = 5u;

// Bytes of neurons for PREDICTION.
const HIT = 1u;
const FALSE_ALARM = 2u;
const MISS = 3u;

struct MapParams {
    // Position of the map on the target, in pixels.
    left: f32,
    top: f32,
    width: f32,
    height: f32,
    // Dots of a layer, across and down.
    columns: u32,
    lines: u32,
    // Layers that are shown.
    layers: u32,
    // Texels per row of `neurons`.
    row: u32,
    fold: u32,
    // 1 if the target expects linear colours.
    linear: u32,
}

@group(0) @binding(0) var<uniform> params: MapParams;
// A byte per neuron, in display order within a layer, folded into rows.
@group(0) @binding(1) var neurons: texture_2d<u32>;
// Per displayed layer: its first row, its first displayed neuron, and the number of displayed
// neurons.
@group(0) @binding(2) var layers: texture_2d<u32>;
// A colour per level.
@group(0) @binding(3) var colours: texture_2d<f32>;

@vertex
fn neuron_map_corner(@builtin(vertex_index) corner: u32) -> @builtin(position) vec4<f32> {
    // One triangle that covers the target.
    let x = f32(corner & 1u) * 4.0 - 1.0;
    let y = f32(corner >> 1u) * 4.0 - 1.0;
    return vec4<f32>(x, y, 0.0, 1.0);
}

// 255 * sqrt(part / whole), rounded.
fn root(part: f32, whole: f32) -> u32 {
    return u32(floor(255.0 * sqrt(min(part / whole, 1.0)) + 0.5));
}

// ceil(place * shown / dots). No product exceeds 32 bits if there are fewer than 2^16 dots.
fn first_of(place: u32, shown: u32, dots: u32) -> u32 {
    return place * (shown / dots) + (place * (shown % dots) + dots - 1u) / dots;
}

fn linear(gamma: vec3<f32>) -> vec3<f32> {
    let low = gamma / 12.92;
    let high = pow((gamma + 0.055) / 1.055, vec3<f32>(2.4));
    return select(high, low, gamma < vec3<f32>(0.04045));
}

@fragment
fn neuron_map_dot(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {
    let x = (at.x - params.left) / params.width;
    let y = (at.y - params.top) / params.height;
    if x < 0.0 || x >= 1.0 || y < 0.0 || y >= 1.0 {
        discard;
    }
    let rows = params.layers * params.lines;
    let column = min(u32(x * f32(params.columns)), params.columns - 1u);
    let line = min(u32(y * f32(rows)), rows - 1u);
    let place = column * params.lines + line % params.lines;
    let dots = params.columns * params.lines;
    let layer = textureLoad(layers, vec2<u32>(line / params.lines, 0u), 0);
    let shown = layer.z;

    // The range of displayed neurons in this dot.
    var first = min(place, shown);
    var end = min(place + 1u, shown);
    if shown > dots {
        first = first_of(place, shown, dots);
        end = min(first_of(place + 1u, shown, dots), shown);
    }
    let crowd = end - first;
    // Number of non-zero bytes; largest byte; union of the bits; sum of squares; hits; false
    // alarms.
    var some = 0u;
    var most = 0u;
    var bits = 0u;
    var squares = 0u;
    var hits = 0u;
    var vain = 0u;
    for (var i = layer.y + first; i < layer.y + end; i++) {
        let byte = textureLoad(neurons, vec2<u32>(i % params.row, layer.x + i / params.row), 0).x;
        some += u32(byte != 0u);
        most = max(most, byte);
        bits |= byte;
        squares += byte * byte;
        hits += u32(byte == HIT);
        vain += u32(byte == FALSE_ALARM);
    }
    var level = 0u;
    switch params.fold {
        case FRACTION {
            level = root(f32(some), f32(max(crowd, 1u)));
        }
        case PLACE {
            level = select(0u, 1u + 254u * some / max(crowd, 1u), crowd > 0u);
        }
        case MOST {
            level = most;
        }
        case PREDICTION {
            if most == MISS {
                level = MISS;
            } else if some > 0u {
                level = select(FALSE_ALARM, HIT, hits >= vain);
            }
        }
        case UNION {
            level = bits;
        }
        case MEAN {
            level = root(f32(squares), 65025.0 * f32(max(crowd, 1u)));
        }
        default {}
    }
    let colour = textureLoad(colours, vec2<u32>(min(level, 255u), 0u), 0).rgb;
    return vec4<f32>(select(colour, linear(colour), params.linear == 1u), 1.0);
}
