package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
)

// A custom tool's call that was asked about is shown twice, as the question and as the client's: outboard ls
// must not take either for one that still runs once the call has ended, and another call must stay.
func TestOfferedCallEnds(t *testing.T) {
	const call, other = "sevt_01asked", "sevt_01other"
	offer := outboard.OfferedID(call)
	tl := silentTimeline()
	for _, e := range []string{
		`{"id":"` + call + `","type":"agent.tool_use","name":"custom:lookup","input":{},"evaluated_permission":"ask"}`,
		`{"id":"` + other + `","type":"agent.custom_tool_use","name":"lookup","input":{}}`,
		`{"id":"sevt_01yes","type":"user.tool_confirmation","tool_use_id":"` + call + `","result":"allow"}`,
		fmt.Sprintf(`{"id":%q,"type":"agent.custom_tool_use","name":"lookup","input":{}}`, offer),
		fmt.Sprintf(`{"id":"sevt_01given","type":"user.custom_tool_result","custom_tool_use_id":%q,"content":[]}`,
			offer),
		`{"id":"sevt_01end","type":"agent.tool_result","tool_use_id":"` + call + `","content":[]}`,
		`{"id":"sevt_01own","type":"outboard.call.finished","payload":{"call":"` + call + `","outcome":"ok"}}`,
	} {
		var ev client.Event
		if err := json.Unmarshal([]byte(e), &ev); err != nil {
			t.Fatal(err)
		}
		ev.ProcessedAt = time.Now()
		if err := tl.event(ev); err != nil {
			t.Fatal(err)
		}
	}
	if len(tl.calls) != 1 || tl.calls[other] == nil {
		t.Errorf("open calls: %v, want %s alone", tl.calls, other)
	}
}
