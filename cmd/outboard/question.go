package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// question is what a person decides: whether a call may run or a host may be reached, or what a custom tool's
// call gives.
type question struct {
	call     *openCall       // nil of a host
	approval client.Approval // of a custom tool's call there is none
	lines    []string        // of the whole request, wrapped
	shown    int             // how many of them
	scope    string          // the lasting rule was shown and waits for a yes, with this scope
}

// decision is how a person answered. The zero value is no answer yet.
type decision struct {
	event any                    // of the wire
	ans   *client.ApprovalAnswer // of an approval
	later bool                   // they decide another time
}

// questionsOf returns what a session waits for: its calls with their approvals, and hosts that nobody has
// decided about.
func questionsOf(ctx context.Context, c *client.Client, session string, calls []*openCall) ([]*question, error) {
	var rows []client.Approval
	for p, err := range c.Approvals(ctx, session, false) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, p)
	}
	var out []*question
	for _, call := range calls {
		q := &question{call: call}
		if at := slices.IndexFunc(rows, func(p client.Approval) bool { return p.EventID == call.id }); at >= 0 {
			q.approval = rows[at]
		}
		out = append(out, q)
	}
	slices.Reverse(rows) // the oldest first
	for _, p := range rows {
		if p.Network != nil {
			out = append(out, &question{approval: p})
		}
	}
	return out, nil
}

// custom reports whether the answer is the result of a client's tool.
func (q *question) custom() bool { return q.call != nil && q.call.custom }

// host reports whether the question is about the network.
func (q *question) host() bool { return q.call == nil }

// id names the question for the commands that answer it.
func (q *question) id() string {
	if q.approval.ID != "" {
		return q.approval.ID
	}
	return q.call.id
}

// request is the text of all that is asked about.
func (q *question) request() string {
	if q.approval.Request != "" {
		return q.approval.Request
	}
	return q.call.name + " " + string(q.call.input)
}

// lasting reports whether an answer can be good for more than this request. It is decided again by the server.
func (q *question) lasting() bool {
	return q.approval.ID != "" && q.approval.Needs < 2 && !strings.HasSuffix(q.approval.Resource, "*") &&
		!strings.HasPrefix(q.approval.Request, "custom:")
}

// factIndent is where the texts of facts begin, below a row.
const factIndent = 12

// facts are the lines about an approval that stand above its request.
func facts(p client.Approval) []string {
	var out []string
	add := func(name, text string) {
		if text != "" {
			out = append(out, fmt.Sprintf("%-9s %s", name, term.Line(text, 0)))
		}
	}
	add("why", p.Why)
	add("rules", strings.Join(p.Rules, ", "))
	add("digest", p.Digest)
	if p.Needs > 1 {
		var by []string
		for _, v := range p.Votes {
			by = append(by, v.By)
		}
		add("people", fmt.Sprintf("%d must allow it; allowed by %s", p.Needs,
			cmp.Or(strings.Join(by, ", "), "nobody yet")))
	}
	return out
}

// requestLines returns a request line by line, with control characters made visible. Each argument stands below its
// name. A text of several lines has one row for each line, indented further than any name.
func requestLines(request string) []string {
	name, body, _ := strings.Cut(request, " ")
	var in map[string]any
	dec := json.NewDecoder(strings.NewReader(asJSON(body)))
	dec.UseNumber()
	if dec.Decode(&in) != nil {
		return visibleLines(request)
	}
	out := []string{term.Line(name, 0)}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		text, ok := in[key].(string)
		if !ok || json.Valid([]byte(text)) { // "5" is not 5
			b, err := json.Marshal(in[key])
			if err != nil {
				return visibleLines(request)
			}
			text = string(b)
		}
		lines := visibleLines(text)
		if len(lines) == 1 {
			out = append(out, "  "+term.Line(key, 0)+": "+lines[0])
			continue
		}
		out = append(out, "  "+term.Line(key, 0)+":")
		for _, l := range lines {
			out = append(out, "    "+l)
		}
	}
	return out
}

// visibleLines splits a text into lines without a control character. Unlike term.Clean it shows the carriage
// return at the end of a line, and tabs.
func visibleLines(text string) []string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.ReplaceAll(term.Clean(l), "\t", "⇥   ")
	}
	return lines
}

// asJSON is the JSON of a request's arguments, in which the server has written what no screen shows as \xNN and
// \UNNNNNNNN.
func asJSON(body string) string {
	var b strings.Builder
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' || i+1 == len(body) {
			b.WriteByte(body[i])
			continue
		}
		i++
		switch {
		case body[i] == 'x':
			b.WriteString(`\u00`)
		case body[i] == 'U' && i+8 < len(body):
			var r rune
			fmt.Sscanf(body[i+1:i+9], "%08x", &r)
			b.WriteString(strings.Trim(string(term.JSON([]byte(`"`+string(r)+`"`))), `"`))
			i += 8
		default:
			b.WriteByte('\\')
			b.WriteByte(body[i])
		}
	}
	return b.String()
}

// printRequest prints facts and request below a row; width 0 does not wrap.
func printRequest(w io.Writer, facts, request []string, width int) error {
	for _, l := range facts {
		if _, err := fmt.Fprintln(w, term.Words("  "+l, width, factIndent)); err != nil {
			return err
		}
	}
	for _, l := range barred(request, width) {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

// barred puts lines behind a bar, which nothing in them can draw at the edge of the screen: long ones are wrapped here.
func barred(lines []string, width int) []string {
	var out []string
	for _, l := range lines {
		for i, row := range term.Wrap(l, max(0, width-5)) {
			bar := "  │ "
			if i > 0 {
				bar = "  ┊ "
			}
			out = append(out, bar+row)
		}
	}
	return out
}

// begin shows the question from its beginning.
func (q *question) begin(a *app, name string) {
	width := term.Width(a.errs, plainWidth)
	what, verb := "", "asks to run"
	switch {
	case q.host():
		verb = "asks for the network"
	case q.custom():
		verb, what = "waits for the result of", " "+term.Line(q.call.name, 40)
	default:
		what = " " + term.Line(q.call.name, 40)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "outboard: %s %s%s:\n", name, verb, what)
	for _, l := range facts(q.approval) {
		fmt.Fprintln(&b, term.Words("  "+l, width, factIndent))
	}
	q.lines, q.shown, q.scope = barred(requestLines(q.request()), width), 0, ""
	q.more(a, b.String())
}

// more shows the next page, below a head.
func (q *question) more(a *app, head string) {
	if a.screen != nil {
		a.screen.Status("")
	}
	_, rows := term.Size(a.errs)
	end := min(len(q.lines), q.shown+max(5, rows-6))
	fmt.Fprint(a.errs, head+strings.Join(q.lines[q.shown:end], "\n")+"\n")
	q.shown = end
}

// prompt is the row that says which answers there are.
func (q *question) prompt() string {
	switch {
	case q.shown < len(q.lines):
		return fmt.Sprintf("lines %d of %d: Enter shows more · n WHY denies · l not now", q.shown, len(q.lines))
	case q.custom():
		return "the next line is its result · /later not now"
	case q.scope == "session":
		return "allow for the rest of this session? [y/N]"
	case q.scope != "":
		return "write this rule? [y/N]"
	case !q.lasting():
		return "allow? y once · n WHY deny · l not now"
	}
	return "allow? y once · s session · a always · n WHY deny · l later"
}

// reply takes a line for an answer. A line that is none gets an explanation, and decides nothing.
func (q *question) reply(line string) (decision, error) {
	line = strings.TrimSpace(line)
	first, rest, _ := strings.Cut(line, " ")
	first, rest = strings.ToLower(first), strings.TrimSpace(rest)
	switch {
	case q.custom() && first == "/later":
		return decision{later: true}, nil
	case q.custom():
		return decision{event: client.CustomResult(q.call.id, line)}, nil
	case first == "n" || first == "no" || first == "deny":
		if q.scope != "" && rest == "" {
			q.scope = ""
			return decision{}, nil
		}
		return q.deny(rest), nil
	case rest != "": // "yes but not there" is no yes
	case first == "l" || first == "later":
		return decision{later: true}, nil
	case q.shown < len(q.lines):
		return decision{}, usagef("%q is no answer before the end of the request: Enter shows more",
			term.Line(line, 60))
	case first == "y" || first == "yes" || first == "allow":
		return q.allow(q.scope), nil
	case q.scope != "":
		q.scope = ""
		return decision{}, nil
	case q.lasting() && (first == "s" || first == "session"):
		return q.allow("session"), nil
	case q.lasting() && (first == "a" || first == "always"):
		q.scope = q.widest()
		return decision{}, nil
	}
	return decision{}, usagef("%q is no answer: y lets it run once, n (and a reason, if you like) does not",
		term.Line(line, 60))
}

// widest is the scope of always.
func (q *question) widest() string {
	if q.host() && !q.approval.Network.Policy {
		return scopeRule
	}
	return "agent"
}

func (q *question) allow(scope string) decision {
	if q.approval.ID == "" {
		return decision{event: client.Confirmation(q.call.id, true, "")}
	}
	return decision{ans: &client.ApprovalAnswer{Result: string(outboard.Allow), Scope: scope,
		Digest: q.approval.Digest}}
}

func (q *question) deny(why string) decision {
	if q.approval.ID == "" {
		return decision{event: client.Confirmation(q.call.id, false, why)}
	}
	return decision{ans: &client.ApprovalAnswer{Result: string(outboard.Deny), Message: why, Digest: q.approval.Digest}}
}

// grantTime is how long the server keeps a grant that an answer makes.
const grantTime = 30 * 24 * time.Hour

// rule describes what always writes, before it is written.
func (q *question) rule(s client.Session, width int) []string {
	out := []string{"always writes this rule:"}
	if q.widest() == scopeRule {
		return append(out, "  environment  "+term.Line(s.EnvironmentID, 0),
			"  allow        host "+term.Line(q.approval.Network.Host, 0)+", ports "+
				ports(q.approval.Network.Port)+", all methods and paths", "  for          this session and every later "+
				"one of the environment",
			"  undo         outboard net rm --rule "+sessionName(s.ID)+" "+hostArgument(q.approval.Network))
	}
	out = append(out, "  allow        "+term.Line(q.approval.Action, 0)+" on exactly this resource:")
	out = append(out, barred(visibleLines(q.approval.Resource), width)...)
	if t, _ := registry.Lookup(q.approval.Action); t.MayChange && t.Subject == registry.File {
		out = append(out, "               whatever it writes there")
	}
	return append(out, "  for          every session of agent "+term.Line(s.Agent.Name, 40)+" with the same owner",
		"  until        "+time.Now().Add(grantTime).
			Format(time.DateOnly)+" (a grant of 30 days)", "  undo         outboard grant ls, outboard grant rm")
}

// hostArgument is a host as the net commands take it.
func hostArgument(t *outboard.NetTarget) string {
	if t.Port == 0 {
		return t.Host
	}
	return fmt.Sprintf("%s:%d", t.Host, t.Port)
}

// put sends a decision, and keeps the approval as it is then.
func (d decision) put(ctx context.Context, c *client.Client, session string, q *question) (*client.Grant, error) {
	if d.ans == nil {
		_, err := c.Send(ctx, session, d.event)
		return nil, err
	}
	p, grant, err := c.AnswerApproval(ctx, q.approval.ID, *d.ans)
	if err == nil {
		q.approval = p
	}
	return grant, err
}

// settled reports whether an error says that a question has been answered, or has ended.
func settled(err error) bool {
	kind := outboard.KindOf(err)
	return kind == outboard.Conflict || kind == outboard.NotFound
}

// decide asks a person about one thing until they answer, and sends the answer. It reports false for "not now".
// A scope is what they have chosen before.
func (a *app) decide(ctx context.Context, c *client.Client, in *term.Input, s client.Session, q *question,
	scope string) (bool, error) {
	q.begin(a, sessionName(s.ID))
	if q.scope = scope; scope != "" {
		a.showRule(q, s)
	}
	for {
		line, err := in.Answer(ctx, func() { fmt.Fprintln(a.errs, q.prompt()) })
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if a.pageOn(q, line) {
			continue
		}
		d, err := q.reply(line)
		switch {
		case err != nil:
			a.say("%v", err)
		case d.later:
			return false, nil
		case d.ans == nil && d.event == nil:
			a.showRule(q, s)
		default:
			grant, err := d.put(ctx, c, s.ID, q)
			if err == nil {
				a.sayDecided(q, d, grant)
			}
			return err == nil, err
		}
	}
}

// pageOn shows more of a request at an empty line.
func (a *app) pageOn(q *question, line string) bool {
	if strings.TrimSpace(line) != "" || q.scope != "" || q.shown == len(q.lines) {
		return false
	}
	q.more(a, "")
	return true
}

func (a *app) showRule(q *question, s client.Session) {
	if q.scope == "" || q.scope == "session" {
		return
	}
	for _, l := range q.rule(s, term.Width(a.errs, plainWidth)) {
		fmt.Fprintln(a.errs, l)
	}
}

// sayDecided says what an answer came to.
func (a *app) sayDecided(q *question, d decision, grant *client.Grant) {
	if d.ans == nil {
		return
	}
	what := approvalSummary(q.approval)
	switch {
	case q.approval.State == string(outboard.ApprovalPending):
		a.say("your answer is kept; %d people must allow it: %s", q.approval.Needs, what)
		a.say("hint: outboard approval show %s says who has", q.approval.ID)
	case d.ans.Result != string(outboard.Allow):
		a.say("denied: %s", what)
	case grant != nil:
		a.say("allowed: %s; it passes until %s, outboard grant rm %s ends that", what, grant.ExpiresAt.Local().
			Format(time.DateOnly), grant.ID)
	case d.ans.Scope == scopeRule:
		a.say("allowed: %s, by a rule of the environment", what)
	case d.ans.Scope == "session":
		a.say("allowed: %s, until the session ends", what)
	default:
		a.say("allowed: %s, once", what)
	}
}
