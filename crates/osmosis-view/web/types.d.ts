// What the API sends, as far as the page reads it; docs/schema has all of it.

import type { Binding } from './keys.js';

export interface Shown {
  title: string;
  crumbs: { text: string; href?: string }[];
  content: Node | Node[];
  keys?: Binding[];
  /** After the content is in the page. */
  entered?: () => void;
  leave?: () => void;
}

export type Interval = [number, number] | null;

export interface RunOverview {
  run: string;
  run_name: string;
  kind: 'eval' | 'train' | 'serve';
  status: 'running' | 'finished' | 'interrupted';
  project: string | null;
  model: string | null;
  dataset: string | null;
  done: number;
  total: number;
  active: number;
  created_at_ms: number;
  finished_at_ms: number | null;
  last_result_at_ms: number | null;
  outcomes: Record<string, number>;
  measured_on: 'all_rollouts' | 'held_out_rows' | 'last_step';
  pass_rate: number | null;
  pass_rate_ci95: Interval;
  reward: number | null;
  reward_ci95: Interval;
  model_calls: number;
  prompt_tokens: number;
  completion_tokens: number;
  cost: number | null;
  steps: number | null;
  trend: number[];
}

export interface Failure {
  outcome: string;
  type: string;
  message: string;
  frame: string | null;
  error: string;
  count: number;
  examples: string[];
  rows: string | null;
  rerun: string;
}

export interface RunPage {
  overview: RunOverview;
  report: any;
  training: any | null;
  record: { status: string; created_at: string; pinned: any; config: string };
}

export interface RolloutGrid {
  states: string[];
  row_index: number[];
  run_index: number[];
  state: number[];
  reward: (number | null)[];
  passed: number[];
  duration_ms: number[];
  completion_tokens: number[];
  model_calls: number[];
  finished_after_ms: (number | null)[];
  began_at_ms: number;
  held_out: number[];
}

export interface Part {
  kind: 'text' | 'image' | 'tokens' | 'other';
  text?: string | null;
  url?: string;
  count?: number;
  value?: unknown;
}

export interface Turn {
  role: string;
  content: Part[];
  reasoning: string | null;
  tool_calls: { id: string; name: string; arguments: string }[];
  answers: string | null;
  is_error: boolean;
  at_ms: number | null;
  call: {
    call_id: number;
    model: string;
    finish_reason: string | null;
    prompt_tokens: number | null;
    completion_tokens: number | null;
    queued_at_ms: number;
    done_at_ms: number;
  } | null;
}

export interface SampleTranscript {
  sample_id: string;
  reward: number | null;
  removed: boolean;
  tools: any[];
  turns: Turn[];
  paths: { turns: number[]; error: string | null }[];
}

export interface Call {
  number: number;
  call_id: number;
  sample_id: string;
  attempt: number;
  purpose: 'policy' | 'judge' | 'other';
  dialect: string;
  model: string;
  upstream: string;
  policy_version: number;
  status: number;
  streamed: boolean;
  error: string | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  queued_at_ms: number;
  sent_at_ms: number | null;
  first_byte_at_ms: number | null;
  done_at_ms: number;
}

export interface EarlierAttempt {
  attempt: number;
  ended_because: string | null;
  calls: Call[];
}

export interface TokenCall {
  call: number;
  call_id: number | null;
  continues: number | null;
  branch_reason: string | null;
  prompt: number[];
  sampled: number[];
  logprobs: number[];
  versions: { version: number; tokens: number }[];
  temperature: number;
  trained: boolean;
  masked_because: string | null;
}

export interface SampleTokens {
  sample_id: string;
  advantages: number[];
  without_advantage: string | null;
  calls: TokenCall[];
  paths: { id: string; calls: number[] }[];
}

export interface RolloutTokens {
  samples: SampleTokens[];
  texts: Record<string, string>;
  none_because: string | null;
  group_use: string;
  group_prefix: number | null;
}

export interface Series {
  name: string;
  color: string;
  dashed?: boolean;
  points: { x: number; y: number | null; low?: number | null; high?: number | null }[];
}
