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
        println!("cargo:rustc-link-lib=vpx");
    }
}
