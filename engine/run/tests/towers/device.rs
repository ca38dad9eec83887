//! Vision towers on a device: against transformers, against the CPU, and within a budget.

use std::sync::Arc;

use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_formats::{format::ReadMode, quant::TensorType};
use thermocline_gpu::{AdapterChoice, FaultPoint, Faults, Gpu, GpuOptions};
use thermocline_model::{PictureSizes, Tower, convert};
use thermocline_pictures::{Picture, ResizeFilter};
use thermocline_run::{
    device::tower_bytes,
    hybrid::{PictureDevice, PictureProcessor},
    placement::Machine,
    runtime::{PictureEmbeddings, Probe},
};

use super::{PICTURES, TOWERS, difference, embed, fixture, picture, tower_of as tower};

/// A tower without layers, which the CPU computes.
const WITHOUT_LAYERS: &str = "gemma4-unified";

/// True if a device computes pictures of this tower.
fn has_device_form(name: &str) -> bool {
    name != WITHOUT_LAYERS
}

fn gpu(faults: Faults) -> Gpu {
    Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, ..GpuOptions::default() }).unwrap()
}

fn processor(tower: Tower) -> PictureProcessor {
    PictureProcessor::new(Arc::new(tower), Cpu::new(&CpuOptions::default()).unwrap())
}

/// A machine on which a device is faster for every picture.
fn slow_cpu() -> Machine {
    let mut machine = Machine::typical();
    machine.cpu.prompts.values_mut().for_each(|rate| *rate = 1.0);
    machine
}

/// Watches the bytes on a device, and ends the computation at a call.
struct Watch<'a> {
    gpu: &'a Gpu,
    most: u64,
    calls: usize,
    cancel_at: usize,
}

impl<'a> Watch<'a> {
    fn new(gpu: &'a Gpu, cancel_at: usize) -> Self {
        Watch { gpu, most: 0, calls: 0, cancel_at }
    }
}

impl Probe for Watch<'_> {
    fn cancelled(&mut self) -> bool {
        self.most = self.most.max(self.gpu.arena().used());
        self.calls += 1;
        self.calls > self.cancel_at
    }
}

/// Computes a picture. True if the device computed it.
fn embed_on(gpu: &Gpu, machine: &Machine, tower: Tower, picture: &Picture) -> Result<(PictureEmbeddings, bool)> {
    let mut processor = processor(tower);
    let device = Some(PictureDevice { gpu, machine });
    let made = processor.embed(picture, device, &mut Watch::new(gpu, usize::MAX))?;
    Ok((made, processor.was_on_device()))
}

/// Largest difference of two results, relative to the largest number if it is above 1.
fn apart(a: &PictureEmbeddings, b: &PictureEmbeddings) -> f32 {
    assert_eq!((a.grid, a.deepstack.len()), (b.grid, b.deepstack.len()));
    let all =
        |of: &PictureEmbeddings| of.deepstack.iter().chain([&of.embeddings]).flatten().copied().collect::<Vec<_>>();
    let (a, b) = (all(a), all(b));
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    a.iter().zip(&b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Patches of a picture, or of its overview.
fn patches(tower: &Tower, picture: &Picture) -> usize {
    let [width, height] = tower.config.sizes.fit(picture.width(), picture.height()).unwrap();
    (width / tower.config.patch_size) * (height / tower.config.patch_size)
}

#[test]
fn pictures_have_the_embeddings_of_transformers() {
    let gpu = gpu(Faults::default());
    let before = gpu.arena().used();
    for (name, of) in TOWERS.into_iter().flat_map(|name| PICTURES.map(|of| (name, of))) {
        let (made, on_device) = embed_on(&gpu, &slow_cpu(), tower(name), &picture(name, of)).unwrap();
        assert_eq!(on_device, has_device_form(name), "{name}");
        let off = difference(name, of, &made);
        println!("{name} {of}: {off}");
        // The limits of the CPU.
        assert!(off < if of == "whole" { 2e-4 } else { 0.05 }, "{name} {of}: {off}");
        assert_eq!(gpu.arena().used(), before, "{name}: the tower is released");
    }
}

#[test]
fn towers_of_other_weight_types_have_about_the_same_embeddings() {
    let (gpu, scratch) = (gpu(Faults::default()), tempfile::tempdir().unwrap());
    for name in ["qwen3-vl", "gemma4", "pixtral", "minicpm-v4_5", "minicpm-v4_6"] {
        for (ty, most) in [(TensorType::F16, 0.02), (TensorType::Q8_0, 0.15)] {
            let target = scratch.path().join(format!("{name}-{ty}.gguf"));
            let path = convert(&fixture(name), &target, ty, &mut |_, _| {}).unwrap().tower.unwrap().path;
            let tower = Tower::open(&path, ReadMode::Map).unwrap();
            let (made, on_device) = embed_on(&gpu, &slow_cpu(), tower, &picture(name, "whole")).unwrap();
            let off = difference(name, "whole", &made);
            println!("{name} {ty}: {off}");
            assert!(on_device && off < most, "{name} {ty}: {off}");
        }
    }
}

/// Pictures of several chunks, whose windows are not whole in one chunk.
#[test]
fn large_pictures_are_those_of_the_cpu() {
    let gpu = gpu(Faults::default());
    for name in ["qwen3-vl", "qwen2_5-vl", "gemma4", "pixtral", "minicpm-v4", "minicpm-v4_6"] {
        let mut tower = tower(name);
        let multiple = tower.config.patch_size * tower.config.merge;
        tower.config.sizes = PictureSizes::Fitted { multiple, least: 1, most: usize::MAX >> 1 };
        let (rows, cols) = (34 / tower.config.merge, 46 / tower.config.merge);
        let picture = picture(name, "whole").resized(cols * multiple, rows * multiple, ResizeFilter::Bicubic).unwrap();
        assert!(patches(&tower, &picture) > 1100, "{name}: several chunks");
        let wanted = embed(tower.clone(), &picture, 2);
        let (made, on_device) = embed_on(&gpu, &slow_cpu(), tower, &picture).unwrap();
        let off = apart(&wanted, &made);
        println!("{name}: {off}");
        assert!(on_device && off < 2e-4, "{name}: {off}");
    }
}

#[test]
fn a_tower_takes_the_planned_bytes_and_leaves_none() {
    let gpu = gpu(Faults::default());
    let before = gpu.arena().used();
    for name in TOWERS.into_iter().filter(|name| has_device_form(name)) {
        let (tower, picture) = (tower(name), picture(name, "whole"));
        let wanted = embed(tower.clone(), &picture, 2);
        let bytes = tower_bytes(gpu.caps(), &tower, patches(&tower, &picture)).unwrap();
        for (budget, fits) in [(before + bytes, true), (before + bytes - 1, false)] {
            gpu.arena().set_budget(budget).unwrap();
            let mut processor = processor(tower.clone());
            let mut watch = Watch::new(&gpu, usize::MAX);
            let device = Some(PictureDevice { gpu: &gpu, machine: &slow_cpu() });
            let made = processor.embed(&picture, device, &mut watch).unwrap();
            assert_eq!(processor.was_on_device(), fits, "{name}");
            assert_eq!(watch.most, if fits { budget } else { before }, "{name}");
            assert_eq!(gpu.arena().used(), before, "{name}");
            // Without room the CPU computes, with its own sums.
            assert!(if fits { apart(&wanted, &made) < 2e-4 } else { wanted == made }, "{name}");
        }
        gpu.arena().set_budget(u64::MAX).unwrap();
    }
    for name in TOWERS.into_iter().filter(|name| !has_device_form(name)) {
        let bytes = tower_bytes(gpu.caps(), &tower(name), 16);
        assert!(matches!(bytes, Err(Error::Unsupported { .. })), "{name}");
    }
}

/// The parts of a sliced picture are computed one after another, with the memory of the largest.
#[test]
fn slices_take_the_bytes_of_one_part() {
    let gpu = gpu(Faults::default());
    let before = gpu.arena().used();
    for name in ["minicpm-v2_6", "minicpm-v4_6"] {
        let (tower, picture) = (tower(name), picture(name, "resized"));
        let parts = tower.config.pictures_of(&picture).unwrap();
        assert!(parts.len() > 2, "{name}: an overview and slices");
        let side = tower.config.patch_size;
        let bytes =
            |part: &Picture| tower_bytes(gpu.caps(), &tower, part.width() / side * (part.height() / side)).unwrap();
        gpu.arena().set_budget(before + parts.iter().map(bytes).max().unwrap()).unwrap();
        let mut processor = processor(tower.clone());
        let mut watch = Watch::new(&gpu, usize::MAX);
        let device = Some(PictureDevice { gpu: &gpu, machine: &slow_cpu() });
        let made = processor.embed(&picture, device, &mut watch).unwrap();
        // The device loads each layer, and a head that merges patches, once per part.
        let loads = tower.weights.layers.len() + usize::from(tower.merger().is_some());
        assert!(processor.was_on_device(), "{name}");
        assert_eq!(watch.calls, parts.len() * loads, "{name}");
        assert!(watch.most <= gpu.arena().budget() && gpu.arena().used() == before, "{name}");
        assert!(apart(&embed(tower, &picture, 2), &made) < 2e-4, "{name}");
        gpu.arena().set_budget(u64::MAX).unwrap();
    }
}

#[test]
fn small_pictures_stay_on_a_cpu_that_is_faster() {
    let gpu = gpu(Faults::default());
    let (made, on_device) =
        embed_on(&gpu, &Machine::typical(), tower("qwen3-vl"), &picture("qwen3-vl", "whole")).unwrap();
    assert!(!on_device && made == embed(tower("qwen3-vl"), &picture("qwen3-vl", "whole"), 2));
    let mut processor = processor(tower("qwen3-vl"));
    let without = processor.embed(&picture("qwen3-vl", "whole"), None, &mut ()).unwrap();
    assert!(without == made && !processor.was_on_device());
}

/// Whichever allocation fails, the CPU computes the picture.
#[test]
fn the_cpu_computes_pictures_that_a_device_fails_with() {
    let (tower, picture) = (tower("qwen3-vl"), picture("qwen3-vl", "whole"));
    let wanted = embed(tower.clone(), &picture, 2);
    // Opening a device allocates a little, and the counting devices of a plan have no faults.
    let points =
        [(FaultPoint::Allocation, 3), (FaultPoint::Allocation, 30), (FaultPoint::Submit, 2), (FaultPoint::Readback, 1)];
    for (point, at) in points {
        let gpu = gpu(Faults(Some((point, at))));
        let before = gpu.arena().used();
        let (made, on_device) = embed_on(&gpu, &slow_cpu(), tower.clone(), &picture).unwrap();
        assert!(!on_device && made == wanted, "{point:?} {at}");
        assert_eq!(gpu.arena().used(), before, "{point:?} {at}");
    }
}

#[test]
fn a_cancelled_picture_leaves_the_device_free() {
    let gpu = gpu(Faults::default());
    let before = gpu.arena().used();
    for cancel_at in [0, 2] {
        let mut processor = processor(tower("qwen2_5-vl"));
        let device = Some(PictureDevice { gpu: &gpu, machine: &slow_cpu() });
        let picture = picture("qwen2_5-vl", "whole");
        let error = processor.embed(&picture, device, &mut Watch::new(&gpu, cancel_at)).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(gpu.arena().used(), before);
        let (again, on_device) = embed_on(&gpu, &slow_cpu(), tower("qwen2_5-vl"), &picture).unwrap();
        assert!(on_device && difference("qwen2_5-vl", "whole", &again) < 2e-4);
    }
}
