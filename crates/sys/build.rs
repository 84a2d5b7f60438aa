//! Compiles `src/vp8.c` for the feature `media`.

fn main() {
    println!("cargo:rerun-if-changed=src/vp8.c");
    #[cfg(feature = "media")]
    {
        let compiled =
            cc::Build::new().file("src/vp8.c").std("c11").warnings(true).try_compile("outboard_vp8");
        if let Err(error) = compiled {
            panic!(
                "the feature `media` needs the headers of libvpx (Debian: apt install libvpx-dev): {error}"
            );
        }
        // The static library where there is one: the number of the shared one differs from one release of Debian to the next, and
        // the same program runs on all of them.
        match static_library("libvpx.a") {
            Some(directory) => {
                println!("cargo:rustc-link-search=native={}", directory.display());
                println!("cargo:rustc-link-lib=static:-bundle=vpx");
            }
            None => println!("cargo:rustc-link-lib=vpx"),
        }
    }
}

/// Returns the directory in which the C compiler finds this library.
#[cfg(feature = "media")]
fn static_library(name: &str) -> Option<std::path::PathBuf> {
    let mut compiler = cc::Build::new().get_compiler().to_command();
    let output = compiler.arg(format!("-print-file-name={name}")).output().ok()?;
    let path = std::path::PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // Without the library the compiler answers with the name alone.
    path.is_absolute().then(|| path.parent().map(Into::into)).flatten()
}
