//! Windows resources: icon, version and manifest become part of the program. Elsewhere there is
//! nothing to do.

use std::{error::Error, path::Path};

const MANIFEST: &str = "../packaging/windows/thermocline.exe.manifest";
const ICON: &str = "../assets/icon/thermocline.ico";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS")? != "windows" {
        return Ok(());
    }
    println!("cargo::rerun-if-changed={MANIFEST}");
    println!("cargo::rerun-if-changed={ICON}");
    let package = std::env::var("CARGO_MANIFEST_DIR")?;
    let icon = Path::new(&package).join(ICON);
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}"));
    let version = format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?);
    let manifest = std::fs::read_to_string(MANIFEST)?.replace("@VERSION@", &version);
    let filled = Path::new(&std::env::var("OUT_DIR")?).join("manifest.xml");
    std::fs::write(&filled, manifest)?;
    let mut resource = winresource::WindowsResource::new();
    resource
        .set_icon(icon.to_str().ok_or("the path of the icon is not UTF-8")?)
        .set_manifest_file(filled.to_str().ok_or("the path of the manifest is not UTF-8")?)
        .set("ProductName", "Thermocline")
        // Task managers show this as the program's name.
        .set("FileDescription", "Thermocline")
        .set("CompanyName", &std::env::var("CARGO_PKG_AUTHORS")?)
        .set("LegalCopyright", "Copyright The Thermocline authors; Apache-2.0 or MIT")
        .set("OriginalFilename", "thermocline.exe");
    resource.compile_for("thermocline")?;
    Ok(())
}
