package bench

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

const (
	// policyBar is the bar of one decision, in microseconds: it is absolute, since no floor of a machine is like it.
	policyBar = 100
	// policyRules is how many policies the stack has, over all its levels.
	policyRules = 50
)

// Policy measures one decision about a shell command under 50 policies, the request built anew each time, and
// the check of a document. The floor beside them is the spawn of a process, which is what a decided call costs
// at least.
func Policy(dir string, n int) ([]Row, error) {
	base, err := policy.Platform("")
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for i := range policyRules - 5 { // the platform has five
		fmt.Fprintf(&text, "@id(\"p%d\") @reason(\"number %d\") forbid (principal, action == Action::\"bash\", "+
			"resource)\n"+
			"when { context.command like \"*command%d *\" && context.path != \"/tmp\" } unless { context.granted };\n", i, i, i)
	}
	var compile, decide []time.Duration
	var layer *policy.Layer
	for range 20 {
		begin := time.Now()
		if layer, err = policy.Compile(outboard.LevelOperator, text.String()); err != nil {
			return nil, err
		}
		compile = append(compile, time.Since(begin))
	}
	set := policy.NewSet(base, layer)
	call := outboard.CallRequested{Name: "bash", Kind: "builtin", Policy: outboard.AlwaysAllow}
	for range n {
		begin := time.Now()
		r := &policy.Request{Session: "sesn_1", Agent: "agent_1", Owner: outboard.Owner{Key: "apikey_1"}}
		r.ForCall(&call, outboard.Raw(`{"command":"go test ./... && git status","timeout_ms":60000}`))
		r.Context.Now = begin
		v := set.Decide(r)
		decide = append(decide, time.Since(begin))
		if v.Decision != outboard.Allow {
			return nil, fmt.Errorf("the decision was %s: %s", v.Decision, v.Reason)
		}
	}
	spawns, _, err := SpawnFloor(dir, 50)
	if err != nil {
		return nil, err
	}
	floor := quantile(spawns, 0.5)
	row := Latency("policy/decide/50", decide, floor)
	row.Bar, row.OK, row.Note = fmt.Sprintf("<= %d us",
		policyBar), row.P50 <= policyBar, "floor is the spawn of a process"
	return []Row{row, Latency("policy/check/50", compile, floor)}, nil
}
