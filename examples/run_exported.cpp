// Run an exported anytime network under a deadline with ONNX Runtime's C++ API.
//
//   anytime export runs/a --to onnx
//   g++ -std=c++17 -O2 run_exported.cpp -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o run_exported
//   ./run_exported runs/a/onnx input.bin 20        # the best answer within 20 ms
//
// input.bin holds the float32 numbers of one sample as the network takes them (normalized, channels first).
// anytime.json is read with nlohmann/json (one header: https://github.com/nlohmann/json).

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

using Values = std::map<std::string, Ort::Value>;

double milliseconds() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// A graph in a file, and the names of what it takes and returns.
struct Graph {
  std::vector<std::string> inputs, outputs;
  Ort::Session session;

  Graph(Ort::Env &env, const std::string &folder, const nlohmann::json &entry, const Ort::SessionOptions &options)
      : inputs(entry.at("inputs")), outputs(entry.at("outputs")),
        session(env, (folder + "/" + entry.at("file").get<std::string>()).c_str(), options) {}

  // Run it on values by name; what it returns is added to them.
  void run(Values &values) {
    std::vector<const char *> takes, returns;
    std::vector<const OrtValue *> given;
    std::vector<OrtValue *> made(outputs.size(), nullptr);
    for (const auto &name : inputs) {
      takes.push_back(name.c_str());
      given.push_back(values.at(name));
    }
    for (const auto &name : outputs) returns.push_back(name.c_str());
    Ort::ThrowOnError(Ort::GetApi().Run(session, nullptr, takes.data(), given.data(), given.size(), returns.data(),
                                        returns.size(), made.data()));
    for (size_t i = 0; i < outputs.size(); i++) values.insert_or_assign(outputs[i], Ort::Value(made[i]));
  }
};

struct Prediction {
  size_t exit;
  std::vector<float> logits;
};

class Exported {
 public:
  nlohmann::json about;

  explicit Exported(const std::string &folder) : env(ORT_LOGGING_LEVEL_ERROR, "anytime") {
    std::ifstream file(folder + "/anytime.json");
    file >> about;
    if (about.at("format") != 1 || about.at("backend") != "onnx")
      throw std::runtime_error(folder + " was exported by another version or for another runtime");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    for (const auto &entry : about.at("stages")) stages.emplace_back(env, folder, entry, options);
    for (const auto &entry : about.at("heads")) heads.emplace_back(env, folder, entry, options);
    fastest.assign(stages.size(), 0.0);
  }

  // The best prediction within so many milliseconds; the first exit is always waited for.
  Prediction predict(std::vector<float> numbers, double deadline) {
    const double start = milliseconds();
    double before = start;
    Values values;
    const std::string name = about.at("input").at(0);
    std::vector<int64_t> shape{1};
    for (const auto &size : about.at("values").at(name).at("shape"))
      if (size.is_number()) shape.push_back(size);
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
    values.emplace(name, Ort::Value::CreateTensor<float>(memory, numbers.data(), numbers.size(), shape.data(), shape.size()));
    for (size_t exit = 0;; exit++) {
      stages[exit].run(values);
      const std::vector<std::string> state = about.at("states").at(exit);
      for (auto each = values.begin(); each != values.end();)  // what no later graph needs is freed
        each = std::find(state.begin(), state.end(), each->first) == state.end() ? values.erase(each) : std::next(each);
      const double now = milliseconds();
      fastest[exit] = fastest[exit] > 0 ? std::min(fastest[exit], now - before) : now - before;
      before = now;
      if (exit + 1 == stages.size() || now - start + 1.1 * fastest[exit + 1] >= deadline) {
        heads[exit].run(values);
        const auto &logits = values.at("logits");
        const float *data = logits.GetTensorData<float>();
        return {exit, std::vector<float>(data, data + logits.GetTensorTypeAndShapeInfo().GetElementCount())};
      }
    }
  }

 private:
  Ort::Env env;
  std::vector<Graph> stages, heads;
  std::vector<double> fastest;  // milliseconds of each stage, as measured so far
};

int main(int argc, char **argv) {
  if (argc < 3) {
    std::cerr << "run_exported FOLDER input.bin [MILLISECONDS]\n";
    return 1;
  }
  Exported net(argv[1]);
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> x(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.begin() + x.size() * sizeof(float), reinterpret_cast<char *>(x.data()));
  const double none = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; i++) net.predict(x, none);  // the first run of a graph is slow; these also measure the stages
  const auto found = net.predict(x, argc > 3 ? std::stod(argv[3]) : none);
  const auto best = std::max_element(found.logits.begin(), found.logits.end()) - found.logits.begin();
  const auto &exits = net.about.at("exits");
  std::cout << "exit " << exits.at(found.exit) << " of " << exits.back() << ": class " << best << "\n";
  nlohmann::json line = {{"exit", found.exit}, {"class", best}, {"logits", found.logits}};
  std::cout << line.dump() << "\n";
}
