// What is an error in the page's modules and in the tests of it.

const browser = [
  'dispatchEvent',
  'document',
  'Event',
  'window',
  'location',
  'history',
  'navigator',
  'matchMedia',
  'getComputedStyle',
  'devicePixelRatio',
  'innerWidth',
  'innerHeight',
  'performance',
  'console',
  'fetch',
  'EventSource',
  'URL',
  'URLSearchParams',
  'AbortController',
  'AbortSignal',
  'TextDecoder',
  'TextEncoder',
  'Blob',
  'Node',
  'Element',
  'HTMLElement',
  'HTMLInputElement',
  'HTMLTextAreaElement',
  'HTMLSelectElement',
  'ResizeObserver',
  'IntersectionObserver',
  'CSS',
  'addEventListener',
  'scrollTo',
  'requestAnimationFrame',
  'setTimeout',
  'clearTimeout',
  'process',
];

export default [
  {
    files: ['**/*.js', '**/*.mjs'],
    languageOptions: {
      ecmaVersion: 2024,
      sourceType: 'module',
      globals: Object.fromEntries(browser.map((name) => [name, 'readonly'])),
    },
    rules: {
      'no-undef': 'error',
      'no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      'prefer-const': 'error',
      eqeqeq: 'error',
      'no-var': 'error',
      'no-eval': 'error',
      'no-implied-eval': 'error',
      'no-fallthrough': 'error',
      'no-unreachable': 'error',
      // Recorded text must never be parsed as HTML.
      'no-restricted-properties': [
        'error',
        ...['innerHTML', 'outerHTML', 'insertAdjacentHTML'].map((property) => ({
          property,
          message: 'use dom.js: text is never HTML',
        })),
      ],
      'no-restricted-syntax': [
        'error',
        {
          selector: "CallExpression[callee.property.name='write'][callee.object.name='document']",
          message: 'use dom.js',
        },
      ],
    },
  },
];
