// Compiles HLSL compute shaders with DXC and wgpu-hal's options: dxc_check LIBRARY PROFILE, with a line "FILE<tab>ENTRY" for
// each on standard input. Prints "refused FILE" and the compiler's reasons; ends with 1 if it refused one or there was none,
// with 2 if it could not be asked. The headers are those that came with the library: see direct3d.sh.
#include "WinAdapter.h"
#include "dxcapi.h"
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

static std::wstring wide(const std::string &text) { return std::wstring(text.begin(), text.end()); }

int main(int argc, char **argv) {
    if (argc != 3) {
        std::cerr << "usage: dxc_check LIBRARY PROFILE < LIST\n";
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    auto create = library ? (DxcCreateInstanceProc)dlsym(library, "DxcCreateInstance") : nullptr;
    CComPtr<IDxcCompiler3> compiler;
    if (!create || FAILED(create(CLSID_DxcCompiler, __uuidof(IDxcCompiler3), (void **)&compiler))) {
        const char *why = dlerror();
        std::cerr << argv[1] << ": no compiler: " << (why ? why : "it makes none") << "\n";
        return 2;
    }
    const std::wstring profile = wide(argv[2]);
    size_t taken = 0, refused = 0;
    for (std::string line; std::getline(std::cin, line);) {
        const size_t tab = line.rfind('\t');
        const std::string name = line.substr(0, tab);
        std::ifstream file(name, std::ios::binary);
        if (tab == std::string::npos || !file) {
            std::cerr << "expected FILE<tab>ENTRY of a file that can be read, got " << line << "\n";
            return 2;
        }
        std::ostringstream contents;
        contents << file.rdbuf();
        const std::string text = contents.str();
        const std::wstring entry = wide(line.substr(tab + 1));
        const DxcBuffer source = {text.data(), text.size(), DXC_CP_UTF8};
        // The last: neither validated nor signed, which takes another library.
        std::vector<const wchar_t *> options = {
            L"-E", entry.c_str(), L"-T", profile.c_str(), L"-HV", L"2018",
            L"-no-warnings", L"-Ges", L"-enable-16bit-types", L"-Vd",
        };
        CComPtr<IDxcResult> result;
        HRESULT status = compiler->Compile(&source, options.data(), options.size(), nullptr, __uuidof(IDxcResult),
                                           (void **)&result);
        CComPtr<IDxcBlobUtf8> errors;
        if (SUCCEEDED(status)) {
            result->GetStatus(&status);
            result->GetOutput(DXC_OUT_ERRORS, __uuidof(IDxcBlobUtf8), (void **)&errors, nullptr);
        }
        if (SUCCEEDED(status)) {
            taken += 1;
        } else {
            refused += 1;
            std::cout << "refused " << name << "\n" << (errors ? errors->GetStringPointer() : "") << std::endl;
        }
    }
    return taken && !refused ? 0 : 1;
}
