#include "gpu/instance.h"

#include <cstring>
#include <vector>

#include "proto/base/log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// The loader unloads drivers and layers with the last instance; the sanitizers can then no longer tell what happened
// in them from what happened in lorad. So they stay loaded until the process ends.
extern "C" int dlclose(void*) { return 0; }
#endif

namespace lorad::gpu {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";

bool has_layer(const char* name) {
    uint32_t n = 0;
    vkEnumerateInstanceLayerProperties(&n, nullptr);
    std::vector<VkLayerProperties> layers(n);
    vkEnumerateInstanceLayerProperties(&n, layers.data());
    for (const VkLayerProperties& layer : layers) {
        if (std::strcmp(layer.layerName, name) == 0) return true;
    }
    return false;
}

}  // namespace

VKAPI_ATTR VkBool32 VKAPI_CALL Instance::on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                    VkDebugUtilsMessageTypeFlagsEXT,
                                                    const VkDebugUtilsMessengerCallbackDataEXT* data, void* user) {
    static_cast<Instance*>(user)->n_messages_.fetch_add(1);
    if (severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT) {
        log_error("vulkan validation: {}", data->pMessage);
    } else {
        log_warn("vulkan validation: {}", data->pMessage);
    }
    return VK_FALSE;
}

Result<std::unique_ptr<Instance>> Instance::create(bool validation) {
    uint32_t loader_version = VK_API_VERSION_1_0;
    if (vkEnumerateInstanceVersion(&loader_version) != VK_SUCCESS || loader_version < VK_API_VERSION_1_3) {
        return make_error(ErrorCode::kNoDevice,
                          format("the Vulkan loader speaks {}, lorad needs 1.3: install libvulkan1 of a newer "
                                 "distribution",
                                 vk_version_text(loader_version)));
    }
    std::unique_ptr<Instance> self(new Instance);

    VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.pApplicationName = "lorad";
    application.apiVersion = VK_API_VERSION_1_3;
    VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    info.pApplicationInfo = &application;

    VkDebugUtilsMessengerCreateInfoEXT messenger{VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
    messenger.messageSeverity =
        VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
    messenger.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
    messenger.pfnUserCallback = &Instance::on_message;
    messenger.pUserData = self.get();

    const VkValidationFeatureEnableEXT enables[] = {VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    VkValidationFeaturesEXT features{VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT};
    features.enabledValidationFeatureCount = 1;
    features.pEnabledValidationFeatures = enables;
    features.pNext = &messenger;  // also covers creation and destruction of the instance itself

    const char* layers[] = {kValidationLayer};
    const char* extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    const bool use_layer = validation && has_layer(kValidationLayer);
    if (use_layer) {
        info.pNext = &features;
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = layers;
        info.enabledExtensionCount = 1;
        info.ppEnabledExtensionNames = extensions;
    } else if (validation) {
        log_warn("{} is not installed: running without validation (package vulkan-validationlayers)", kValidationLayer);
    }

    const VkResult result = vkCreateInstance(&info, nullptr, &self->instance_);
    if (result != VK_SUCCESS) {
        return make_error(ErrorCode::kNoDevice,
                          format("no Vulkan driver could be loaded ({}): install the GPU vendor's driver, or "
                                 "mesa-vulkan-drivers for lavapipe; VK_DRIVER_FILES names a driver's json file",
                                 vk_result_name(result)));
    }
    if (use_layer) {
        auto create_messenger = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(
            vkGetInstanceProcAddr(self->instance_, "vkCreateDebugUtilsMessengerEXT"));
        CHECK(create_messenger != nullptr);
        VK_TRY(create_messenger(self->instance_, &messenger, nullptr, &self->messenger_));
    }
    return self;
}

Instance::~Instance() {
    if (messenger_ != VK_NULL_HANDLE) {
        auto destroy_messenger = reinterpret_cast<PFN_vkDestroyDebugUtilsMessengerEXT>(
            vkGetInstanceProcAddr(instance_, "vkDestroyDebugUtilsMessengerEXT"));
        destroy_messenger(instance_, messenger_, nullptr);
    }
    if (instance_ != VK_NULL_HANDLE) vkDestroyInstance(instance_, nullptr);
}

}  // namespace lorad::gpu
