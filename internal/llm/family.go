package llm

import "strings"

// family is what is known about models from their name alone.
type family struct {
	prefix   string
	wire     string // wire family of the vendor's own API, "" when the name says nothing about it
	context  int64
	output   int64
	thinking string
}

// families is searched for the longest prefix. The sizes are what the vendors publish; a provider's models list
// overrides them. Understating one costs an early compaction or a shorter response, overstating one a failed
// request.
var families = []family{
	{"claude-3-haiku", TypeAnthropic, 200_000, 4_096, ThinkingOff},
	{"claude-3-opus", TypeAnthropic, 200_000, 4_096, ThinkingOff},
	{"claude-3-5-", TypeAnthropic, 200_000, 8_192, ThinkingOff},
	{"claude-3-7-", TypeAnthropic, 200_000, 64_000, ThinkingBudget},
	{"claude-sonnet-4-0", TypeAnthropic, 200_000, 64_000, ThinkingBudget},
	{"claude-sonnet-4-2", TypeAnthropic, 200_000, 64_000, ThinkingBudget}, // the dated name of 4.0
	{"claude-sonnet-4-5", TypeAnthropic, 200_000, 64_000, ThinkingBudget},
	{"claude-haiku-4-5", TypeAnthropic, 200_000, 64_000, ThinkingBudget},
	{"claude-opus-4-0", TypeAnthropic, 200_000, 32_000, ThinkingBudget},
	{"claude-opus-4-1", TypeAnthropic, 200_000, 32_000, ThinkingBudget},
	{"claude-opus-4-2", TypeAnthropic, 200_000, 32_000, ThinkingBudget}, // the dated name of 4.0
	{"claude-opus-4-5", TypeAnthropic, 200_000, 64_000, ThinkingBudget},
	{"claude-", TypeAnthropic, 200_000, 64_000, ThinkingAdaptive},
	{"gpt-3.5", TypeResponses, 16_000, 4_096, ThinkingOff},
	{"gpt-4o", TypeResponses, 128_000, 16_384, ThinkingOff},
	{"gpt-4.1", TypeResponses, 1_000_000, 32_768, ThinkingOff},
	{"gpt-4", TypeResponses, 128_000, 4_096, ThinkingOff},
	{"gpt-5", TypeResponses, 400_000, 128_000, ThinkingAdaptive},
	{"gpt-oss", "", 128_000, 32_000, ThinkingAdaptive},
	{"gpt-", TypeResponses, 256_000, 64_000, ThinkingAdaptive},
	{"chatgpt-", TypeResponses, 128_000, 16_384, ThinkingOff},
	{"codex-", TypeResponses, 200_000, 100_000, ThinkingAdaptive},
	{"o1", TypeResponses, 200_000, 100_000, ThinkingAdaptive},
	{"o3", TypeResponses, 200_000, 100_000, ThinkingAdaptive},
	{"o4", TypeResponses, 200_000, 100_000, ThinkingAdaptive},
	{"", "", 128_000, 16_000, ThinkingOff},
}

// familyOf returns the family of a model name. A vendor prefix of a gateway ("meta/llama") does not count.
func familyOf(model string) family {
	name := model[strings.LastIndexByte(model, '/')+1:]
	best := families[len(families)-1]
	for _, f := range families {
		if strings.HasPrefix(name, f.prefix) && len(f.prefix) > len(best.prefix) {
			best = f
		}
	}
	return best
}
