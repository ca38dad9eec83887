/* Compiles compute kernels (SPIR-V) with a Vulkan driver and prints what the driver says of the machine code: registers, spills,
 * occupancy, instruction counts. Needs no GPU where the driver can compile without one; tests/gpu_offline.sh runs it.
 *
 *   pipeline_stats LIST [-d NAME] [-r] [-o OUT]
 *
 * LIST: lines "path TAB entry TAB buffers TAB push_constant_bytes", further fields are ignored; the module is path.spv, its label the
 * path's last part.
 * -d NAME  the first device whose name contains NAME (else the first there is)
 * -r       with robustBufferAccess2, as wgpu opens its devices (else without)
 * -o OUT   writes the driver's texts of the code to OUT/label.N.M.txt
 *
 * Prints a line per kernel: label, then "name=value" for each statistic, tab-separated; exits with 1 if a kernel failed.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define CHECK(call) do { VkResult r_ = (call); if (r_ != VK_SUCCESS) { fprintf(stderr, "%s: %d\n", #call, r_); exit(2); } } while (0)

static void *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *size = ftell(f);
    rewind(f);
    void *data = malloc(*size + 4);
    if (fread(data, 1, *size, f) != *size) exit(2);
    fclose(f);
    return data;
}

int main(int argc, char **argv) {
    if (argc < 2) { fprintf(stderr, "usage: pipeline_stats LIST [-d NAME] [-r] [-o OUT]\n"); return 2; }
    const char *list = argv[1], *name = NULL, *out = NULL;
    int robust = 0, failed = 0;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "-d")) name = argv[++i];
        else if (!strcmp(argv[i], "-r")) robust = 1;
        else if (!strcmp(argv[i], "-o")) out = argv[++i];
    }
    VkApplicationInfo app = { VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3 };
    VkInstanceCreateInfo ici = { VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app };
    VkInstance instance;
    CHECK(vkCreateInstance(&ici, NULL, &instance));
    uint32_t n = 16;
    VkPhysicalDevice devices[16], device = NULL;
    VkResult listed = vkEnumeratePhysicalDevices(instance, &n, devices);
    if (listed != VK_SUCCESS && listed != VK_INCOMPLETE) { fprintf(stderr, "no devices: %d\n", listed); return 2; }
    VkPhysicalDeviceSubgroupSizeControlProperties sizes = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES };
    VkPhysicalDeviceProperties2 props = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &sizes };
    for (uint32_t i = 0; i < n; i++) {
        vkGetPhysicalDeviceProperties2(devices[i], &props);
        fprintf(stderr, "device %u: %s, Vulkan %u.%u, subgroups %u..%u, shared %u\n", i, props.properties.deviceName,
                VK_API_VERSION_MAJOR(props.properties.apiVersion), VK_API_VERSION_MINOR(props.properties.apiVersion),
                sizes.minSubgroupSize, sizes.maxSubgroupSize, props.properties.limits.maxComputeSharedMemorySize);
        if (!device && (!name || strcasestr(props.properties.deviceName, name))) device = devices[i];
    }
    if (!device) { fprintf(stderr, "no such device\n"); return 2; }
    vkGetPhysicalDeviceProperties2(device, &props);

    uint32_t ext_count = 0;
    vkEnumerateDeviceExtensionProperties(device, NULL, &ext_count, NULL);
    VkExtensionProperties *exts = calloc(ext_count, sizeof *exts);
    vkEnumerateDeviceExtensionProperties(device, NULL, &ext_count, exts);
    const char *wanted[] = { "VK_KHR_pipeline_executable_properties", "VK_EXT_robustness2", "VK_KHR_cooperative_matrix",
        "VK_KHR_shader_float16_int8", "VK_KHR_16bit_storage", "VK_KHR_shader_integer_dot_product",
        "VK_EXT_subgroup_size_control", "VK_KHR_vulkan_memory_model", "VK_KHR_zero_initialize_workgroup_memory",
        "VK_KHR_shader_subgroup_extended_types" };
    const char *enabled[16];
    uint32_t enabled_count = 0;
    int has_exec = 0, has_coop = 0, has_robust = 0;
    for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++)
        for (uint32_t i = 0; i < ext_count; i++)
            if (!strcmp(wanted[w], exts[i].extensionName)) {
                enabled[enabled_count++] = wanted[w];
                has_exec |= w == 0, has_robust |= w == 1, has_coop |= w == 2;
            }
    if (!has_exec) fprintf(stderr, "the driver has no statistics\n");

    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR exec_f = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR };
    VkPhysicalDeviceRobustness2FeaturesEXT robust_f = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT };
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR coop_f = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR };
#else /* older headers */
    struct { void *pNext; VkBool32 cooperativeMatrix; } coop_f = { 0 };
    has_coop = 0;
#endif
    VkPhysicalDeviceVulkan13Features f13 = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES };
    VkPhysicalDeviceVulkan12Features f12 = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES };
    VkPhysicalDeviceVulkan11Features f11 = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES };
    VkPhysicalDeviceFeatures2 features = { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2 };
    void **next = &features.pNext;
    int v13 = props.properties.apiVersion >= VK_API_VERSION_1_3, v12 = props.properties.apiVersion >= VK_API_VERSION_1_2;
    if (v12) { *next = &f11, next = &f11.pNext; *next = &f12, next = &f12.pNext; }
    if (v13) { *next = &f13, next = &f13.pNext; }
    if (has_exec) { *next = &exec_f, next = &exec_f.pNext; }
    if (has_robust) { *next = &robust_f, next = &robust_f.pNext; }
    if (has_coop) { *next = &coop_f, next = &coop_f.pNext; }
    vkGetPhysicalDeviceFeatures2(device, &features);
    fprintf(stderr, "dot product %u, f16 %u, size control %u, robust2 %u, cooperative matrices %u\n", f13.shaderIntegerDotProduct,
            f12.shaderFloat16, f13.subgroupSizeControl, robust_f.robustBufferAccess2, coop_f.cooperativeMatrix);
    features.features.robustBufferAccess = robust;
    f13.robustImageAccess = 0;
    robust_f.robustBufferAccess2 = robust && robust_f.robustBufferAccess2;
    robust_f.robustImageAccess2 = robust_f.nullDescriptor = 0;
    float priority = 1;
    VkDeviceQueueCreateInfo qci = { VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority };
    VkDeviceCreateInfo dci = { VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features, .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &qci, .enabledExtensionCount = enabled_count, .ppEnabledExtensionNames = enabled };
    VkDevice dev;
    CHECK(vkCreateDevice(device, &dci, NULL, &dev));
#define GET(f) PFN_##f f##_ = (PFN_##f)vkGetDeviceProcAddr(dev, #f)
    GET(vkGetPipelineExecutablePropertiesKHR);
    GET(vkGetPipelineExecutableStatisticsKHR);
    GET(vkGetPipelineExecutableInternalRepresentationsKHR);

    FILE *f = fopen(list, "r");
    if (!f) { fprintf(stderr, "no list\n"); return 2; }
    char line[1280], module_path[1024], entry[128], path[1536];
    while (fgets(line, sizeof line, f)) {
        unsigned buffers, push;
        if (sscanf(line, "%1023s %127s %u %u", module_path, entry, &buffers, &push) != 4) continue;
        const char *label = strrchr(module_path, '/') ? strrchr(module_path, '/') + 1 : module_path;
        if (strstr(entry, "_coop") && !coop_f.cooperativeMatrix) continue;
        size_t bytes;
        snprintf(path, sizeof path, "%s.spv", module_path);
        void *code = read_file(path, &bytes);
        if (!code) { printf("%s\tFAILED=no module\n", label); failed = 1; continue; }
        VkShaderModuleCreateInfo smci = { VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = code };
        VkShaderModule module;
        CHECK(vkCreateShaderModule(dev, &smci, NULL, &module));
        VkDescriptorSetLayoutBinding bindings[16] = { 0 };
        for (unsigned i = 0; i < buffers; i++)
            bindings[i] = (VkDescriptorSetLayoutBinding) { i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL };
        VkDescriptorSetLayoutCreateInfo slci = { VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = buffers, .pBindings = bindings };
        VkDescriptorSetLayout set_layout;
        CHECK(vkCreateDescriptorSetLayout(dev, &slci, NULL, &set_layout));
        VkPushConstantRange range = { VK_SHADER_STAGE_COMPUTE_BIT, 0, push };
        VkPipelineLayoutCreateInfo lci = { VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = &set_layout,
            .pushConstantRangeCount = push > 0, .pPushConstantRanges = &range };
        VkPipelineLayout layout;
        CHECK(vkCreatePipelineLayout(dev, &lci, NULL, &layout));
        VkComputePipelineCreateInfo cpci = { VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
            .flags = !has_exec ? 0 : VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR | (out ? VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR : 0),
            .stage = { VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, 
                .flags = !v13 ? 0 : VK_PIPELINE_SHADER_STAGE_CREATE_ALLOW_VARYING_SUBGROUP_SIZE_BIT,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = entry },
            .layout = layout };
        VkPipeline pipeline;
        VkResult made = vkCreateComputePipelines(dev, VK_NULL_HANDLE, 1, &cpci, NULL, &pipeline);
        if (made != VK_SUCCESS) { printf("%s\tFAILED=%d\n", label, made); failed = 1; continue; }
        if (!has_exec) { printf("%s\tok\n", label); fflush(stdout); vkDestroyPipeline(dev, pipeline, NULL); free(code); continue; }
        VkPipelineInfoKHR info = { VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline };
        uint32_t count = 8;
        VkPipelineExecutablePropertiesKHR exes[8];
        for (int i = 0; i < 8; i++) exes[i] = (VkPipelineExecutablePropertiesKHR) { VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR };
        CHECK(vkGetPipelineExecutablePropertiesKHR_(dev, &info, &count, exes));
        for (uint32_t e = 0; e < count; e++) {
            printf("%s\tsubgroup=%u\texe=%s", label, exes[e].subgroupSize, exes[e].name);
            VkPipelineExecutableInfoKHR xi = { VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline, .executableIndex = e };
            uint32_t stat_count = 64;
            VkPipelineExecutableStatisticKHR stats[64];
            for (int i = 0; i < 64; i++) stats[i] = (VkPipelineExecutableStatisticKHR) { VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR };
            vkGetPipelineExecutableStatisticsKHR_(dev, &xi, &stat_count, stats);
            for (uint32_t i = 0; i < stat_count; i++) {
                if (stats[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR) printf("\t%s=%g", stats[i].name, stats[i].value.f64);
                else printf("\t%s=%llu", stats[i].name, (unsigned long long)stats[i].value.u64);
            }
            printf("\n");
            fflush(stdout);
            if (!out) continue;
            uint32_t ir_count = 0;
            vkGetPipelineExecutableInternalRepresentationsKHR_(dev, &xi, &ir_count, NULL);
            VkPipelineExecutableInternalRepresentationKHR *irs = calloc(ir_count, sizeof *irs);
            for (uint32_t i = 0; i < ir_count; i++) irs[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
            vkGetPipelineExecutableInternalRepresentationsKHR_(dev, &xi, &ir_count, irs);
            for (uint32_t i = 0; i < ir_count; i++) irs[i].pData = malloc(irs[i].dataSize + 1);
            vkGetPipelineExecutableInternalRepresentationsKHR_(dev, &xi, &ir_count, irs);
            for (uint32_t i = 0; i < ir_count; i++) {
                snprintf(path, sizeof path, "%s/%s.%u.%u.txt", out, label, e, i);
                FILE *to = fopen(path, "w");
                fprintf(to, "; %s\n", irs[i].name);
                fwrite(irs[i].pData, 1, irs[i].dataSize, to);
                fclose(to);
                free(irs[i].pData);
            }
            free(irs);
        }
        vkDestroyPipeline(dev, pipeline, NULL);
        vkDestroyShaderModule(dev, module, NULL);
        free(code);
    }
    return failed;
}
