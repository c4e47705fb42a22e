package outboard

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Cost is an amount of money in billionths of a US dollar: a token costs some hundreds of them.
type Cost int64

// Units of a Cost.
const (
	Cent   Cost = 1e7
	Dollar Cost = 100 * Cent
)

// Cents is the amount in whole cents, rounded up: what was begun is counted.
func (c Cost) Cents() int64 { return int64((c + Cent - 1) / Cent) }

// String is the amount in dollars, with as many digits as it needs, at least two.
func (c Cost) String() string {
	sign := ""
	if c < 0 {
		sign, c = "-", -c
	}
	s := strings.TrimRight(fmt.Sprintf("%09d", c%Dollar), "0")
	for len(s) < 2 {
		s += "0"
	}
	return fmt.Sprintf("%s$%d.%s", sign, c/Dollar, s)
}

// Spend is what sessions have used up, or may. As a limit, 0 in a field is no limit.
type Spend struct {
	Cost    Cost          `json:"cost,omitempty"`    // list cost
	Tokens  int64         `json:"tokens,omitempty"`  // of all kinds
	Steps   int64         `json:"steps,omitempty"`   // model calls that answered, each with the tool calls it asked for
	Running time.Duration `json:"running,omitempty"` // wall time in which a turn ran
	Sandbox time.Duration `json:"sandbox,omitempty"` // time of the calls that ran in a sandbox
}

// Add returns the sum of two spends.
func (s Spend) Add(o Spend) Spend {
	return Spend{s.Cost + o.Cost, s.Tokens + o.Tokens, s.Steps + o.Steps, s.Running + o.Running, s.Sandbox + o.Sandbox}
}

// IsZero reports whether nothing is set.
func (s Spend) IsZero() bool { return s == Spend{} }

// BudgetScope is what a budget is about.
type BudgetScope string

// The scopes. A session's budget counts its forks too, and theirs: a fork is no way out of it.
const (
	BudgetSession BudgetScope = "session"
	BudgetAgent   BudgetScope = "agent"
	BudgetOwner   BudgetScope = "owner" // the person, or the API key of a program, for whom sessions act
)

// Budget bounds what the sessions of a scope may use up, together, from when it was set. Money, tokens and steps
// are reserved before a model call, so that calls at the same time cannot pass a limit together.
type Budget struct {
	ID        BudgetID    `json:"id"`
	Scope     BudgetScope `json:"scope"`
	Target    string      `json:"target"`
	Org       OrgID       `json:"org"`
	Limit     Spend       `json:"limit"`
	Spent     Spend       `json:"spent"`
	Held      Spend       `json:"held"` // reserved by model calls under way
	CreatedAt time.Time   `json:"created_at"`
	UpdatedAt time.Time   `json:"updated_at"`
}

// BudgetID names a budget: its scope and target. There is one of each.
type BudgetID string

// BudgetOf returns the id of the budget of a scope.
func BudgetOf(scope BudgetScope, target string) BudgetID {
	return BudgetID(string(scope) + ":" + target)
}

// Short names the first limit of which less is left than a model call needs at least, "" when there is none.
// held counts as spent.
func (b *Budget) Short(least Spend, held bool) string {
	used := b.Spent
	if held {
		used = used.Add(b.Held)
	}
	short := func(limit, used, least int64) bool { return limit > 0 && limit-used < max(least, 1) }
	switch {
	case short(int64(b.Limit.Cost), int64(used.Cost), int64(least.Cost)):
		return "money"
	case short(b.Limit.Tokens, used.Tokens, least.Tokens):
		return "tokens"
	case short(b.Limit.Steps, used.Steps, least.Steps):
		return "steps"
	case short(int64(b.Limit.Running), int64(used.Running), int64(least.Running)):
		return "running time"
	case short(int64(b.Limit.Sandbox), int64(used.Sandbox), int64(least.Sandbox)):
		return "sandbox time"
	}
	return ""
}

// Left is what is left of each limit that is set, of the others math.MaxInt64.
func (b *Budget) Left() Spend {
	used := b.Spent.Add(b.Held)
	left := func(limit, used int64) int64 {
		if limit == 0 {
			return 1<<63 - 1
		}
		return max(0, limit-used)
	}
	return Spend{Cost(left(int64(b.Limit.Cost), int64(used.Cost))), left(b.Limit.Tokens, used.Tokens),
		left(b.Limit.Steps, used.Steps),
		time.Duration(left(int64(b.Limit.Running), int64(used.Running))), time.Duration(left(int64(b.Limit.Sandbox),
			int64(used.Sandbox)))}
}

// LeftOf is what budgets together leave of each limit, of one that none has math.MaxInt64, after what is owed
// and not yet in them.
func LeftOf(budgets []Budget, owed Spend) Spend {
	left := (&Budget{}).Left()
	for _, b := range budgets {
		b.Spent = b.Spent.Add(owed)
		l := b.Left()
		left = Spend{min(left.Cost, l.Cost), min(left.Tokens, l.Tokens), min(left.Steps, l.Steps),
			min(left.Running, l.Running), min(left.Sandbox, l.Sandbox)}
	}
	return left
}

// ParseCost reads dollars, such as 2.50.
func ParseCost(text string) (Cost, error) {
	whole, frac, _ := strings.Cut(strings.TrimPrefix(text, "$"), ".")
	if whole == "" || len(frac) > 9 || strings.ContainsAny(whole+frac, "+-_ ") {
		return 0, Errorf(Invalid, "%q is not an amount in dollars such as 2.50", text)
	}
	n, err := strconv.ParseInt(whole+frac+strings.Repeat("0", 9-len(frac)), 10, 64)
	if err != nil {
		return 0, Errorf(Invalid, "%q is not an amount in dollars such as 2.50", text)
	}
	return Cost(n), nil
}
