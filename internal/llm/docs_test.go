package llm

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// If this failed, docs/reference/script.md would teach steps that do not work, or do something else.
func TestScriptDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/script.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml steps\n(.*?)```\n+```text\n(.*?)```").
		FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "```yaml steps"); n != len(examples) || n < 3 {
		t.Fatalf("%d of %d examples of steps have their responses behind them", len(examples), n)
	}
	for _, ex := range examples {
		k := newTalk(t, Config{}, "script/steps")
		k.turn(ex[1])
		var got strings.Builder
		for stop := ""; stop != "end_turn"; {
			resp, err := k.model.Generate(t.Context(), k.req, nil)
			if e, ok := errors.AsType[*Error](err); ok && e.Retryable {
				fmt.Fprintf(&got, "error %s %d\n", e.Type, e.Status)
				k.req.Attempt++
				continue
			}
			if err != nil {
				t.Fatalf("running\n%s%v", ex[1], err)
			}
			fmt.Fprintln(&got, short(resp))
			k.keep(resp, "ok")
			stop = resp.Stop
		}
		want(t, got.String(), ex[2])
	}
	scripts := regexp.MustCompile("(?s)```yaml script\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(scripts) != 1 {
		t.Fatalf("%d named scripts, want one", len(scripts))
	}
	k := newTalk(t, Config{Scripts: Scripts{Inline: map[string]string{"fix": scripts[0][1]}}}, "script/fix")
	k.turn("fix it")
	var stops []string
	for _, result := range []string{"FAIL: add", "ok", "", ""} {
		stops = append(stops, k.next(result))
		if strings.HasSuffix(stops[len(stops)-1], "end_turn") {
			k.turn("Thanks!")
		}
	}
	want(t, fmt.Sprint(len(stops), " ", stops[2], "; ", stops[3]),
		"4 text All tests pass. -> end_turn; text You are welcome. -> end_turn")
	for name := range tools {
		if !strings.Contains(string(text), "`"+name+": ") {
			t.Errorf("docs/reference/script.md does not tell of the step %q", name)
		}
	}
}
